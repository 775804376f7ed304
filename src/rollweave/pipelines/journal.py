"""Journal: turns what happened in a step into one row of metrics, and hands it to its listeners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from rollweave.clock import Clock
from rollweave.engines.protocol import EngineStats
from rollweave.fleet.fleet import Fleet
from rollweave.observability.accounting import Accountant
from rollweave.observability.catalogue import part
from rollweave.observability.events import Event, Recorder
from rollweave.observability.metrics import Value
from rollweave.observability.phases import BusyTime, IdleMeter, Phase, StepClock
from rollweave.rollout.evaluation import Evaluation
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.rollout.state import SchedulerState
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch, Outcome, Trajectory

MetricsRow = dict[str, Value]
OnRow = Callable[[int, MetricsRow], None]
OnTrajectories = Callable[[int, list[Trajectory]], None]


@dataclass
class Journal:
    clock: Clock
    scheduler: RolloutScheduler
    fleet: Fleet
    recorder: Recorder
    on_row: Sequence[OnRow] = ()
    on_trajectories: Sequence[OnTrajectories] = ()

    def __post_init__(self) -> None:
        now = self.clock.now
        self._began = now()
        self._steps = StepClock(now)
        self._trainer_busy, self._trainer_idle, self._engine_idle = BusyTime(now), IdleMeter(now), IdleMeter(now)
        self._last_stats = EngineStats()
        self._tasks: set[str] = set()
        """The names of all tasks that were trained so far."""
        self.accountant = Accountant()
        self.recorder.sinks.append(self.accountant)

    @contextmanager
    def phase(self, name: Phase, step: int) -> Iterator[None]:
        """Around a phase of the loop: it is an event, its time is counted, and training is the trainer's work."""
        work = self._trainer_busy.busy() if name == "train" else nullcontext()
        self.recorder.emit("phase.begin", phase=name, step=step)
        with self._steps.phase(name), work:
            yield
        self.recorder.emit("phase.end", phase=name, step=step)

    def trainer_works(self) -> AbstractContextManager[None]:
        """Around what the trainer does outside its phase."""
        return self._trainer_busy.busy()

    async def record(self, batch: Batch, metrics: Metrics, evaluation: Evaluation | None, checksum: str) -> None:
        """Write the step down."""
        row: MetricsRow = {
            **metrics,
            **_episodes(batch),
            **_staleness(batch),
            **self._by_task(batch),
            **_evaluation(evaluation),
            **await self._engine_rates(),
            **self.accountant.sample(self.recorder.now()),
            **self._books(),
            **self._steps.finish(),
            "idle/trainer": self._trainer_idle.sample(self._trainer_busy.seconds()),
            "policy/version": batch.step + 1,
            "weights/checksum": checksum,
            "time/elapsed": self.clock.now() - self._began,
        }
        row |= _rates(row)
        for listener in self.on_row:
            listener(batch.step, row)
        for transcriber in self.on_trajectories:
            transcriber(batch.step, list(batch.trajectories()))
        self.recorder.emit("step.end", step=batch.step, ledger=self.scheduler.ledger.summary())

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """A row with nothing but an evaluation: of the version the last step made."""
        row: MetricsRow = {**_evaluation(evaluation), "time/elapsed": self.clock.now() - self._began}
        for listener in self.on_row:
            listener(evaluation.version, row)

    def resume(self, elapsed: float, events: Iterable[Event], rows: Sequence[Mapping[str, Any]]) -> None:
        """Go on counting where an earlier process of the run stopped."""
        self._began -= elapsed
        self.accountant.resume(events, rows)

    def go_back(self, kept: SchedulerState, history: int) -> None:
        """Say where the run goes back to, and what is complete or open there."""
        self.recorder.emit(
            "run.back",
            version=kept.version,
            history=history,
            complete=[group.id for group in kept.buffered],
            open=[[group.id, group.version] for group in kept.open],
        )

    def _books(self) -> MetricsRow:
        books, scheduler = self.scheduler.ledger.summary(), self.scheduler
        return {
            **{f"ledger/task/{state}": count for state, count in books["tasks"].items()},
            **{f"ledger/attempt/{state}": count for state, count in books["attempts"].items()},
            "queue/groups_buffered": len(scheduler.buffer),
            "queue/groups_running": len(scheduler.running),
        }

    def _by_task(self, batch: Batch) -> MetricsRow:
        """The same for each task, in a run that has several."""
        by_task: dict[str, list[Trajectory]] = {}
        for trajectory in batch.trajectories():
            by_task.setdefault(trajectory.task.environment, []).append(trajectory)
        self._tasks |= by_task.keys()
        row: MetricsRow = {}
        if len(self._tasks) > 1:
            for task, trajectories in sorted(by_task.items()):
                row |= {f"{key}/{part(task)}": value for key, value in _of_task(batch.step, trajectories).items()}
        return row

    async def _engine_rates(self) -> MetricsRow:
        quiet = self.accountant.quiet
        stats = await self.fleet.look()
        self.fleet.learn_from_engines()
        now, last = stats.totals, self._last_stats
        self._last_stats = now
        tokens = self.accountant.tokens
        tokens.sampled(now.sampled_tokens - last.sampled_tokens, now.restarted_tokens - last.restarted_tokens)
        if quiet and self.accountant.quiet:
            tokens.settle()
        self._steps.add("recompute", now.recompute_seconds - last.recompute_seconds)
        return {
            **self._handover(now, last),
            "idle/engine": self._engine_idle.sample(now.busy_seconds, workers=self.fleet.size),
            "memory/engine_mb": max((engine.memory_mb for engine in stats.engines), default=0.0),
        }

    def _handover(self, now: EngineStats, last: EngineStats) -> MetricsRow:
        """What prefill engines handed to decode engines, if there are such engines."""
        if all(entry.role != "decode" for entry in self.fleet.entries.values()):
            return {}
        return {
            "handover/tokens": now.handed_tokens - last.handed_tokens,
            "handover/mb": (now.handed_bytes - last.handed_bytes) / 2**20,
            "handover/seconds": now.handover_seconds - last.handover_seconds,
        }


def _episodes(batch: Batch) -> MetricsRow:
    trajectories = list(batch.trajectories())
    rewards = [t.reward for t in trajectories]
    names = dict.fromkeys(name for t in trajectories for name in t.rewards)
    return {
        "reward/mean": fmean(rewards),
        "reward/std": pstdev(rewards),
        **{f"reward/{name}": fmean(t.rewards.get(name, 0.0) for t in trajectories) for name in names},
        "episode/turns_mean": fmean(len(t.turns) for t in trajectories),
        "episode/tokens_mean": fmean(t.length for t in trajectories),
        "episode/truncated_share": fmean(t.outcome is Outcome.TRUNCATED for t in trajectories),
        "tokens/trained": batch.sampled_tokens,
    }


def _of_task(step: int, trajectories: Sequence[Trajectory]) -> MetricsRow:
    ages = [step - t.oldest_version for t in trajectories]
    return {
        "reward/mean": fmean(t.reward for t in trajectories),
        "episode/turns_mean": fmean(len(t.turns) for t in trajectories),
        "episode/tokens_mean": fmean(t.length for t in trajectories),
        "tokens/trained": sum(t.sampled_tokens for t in trajectories),
        "staleness/mean": fmean(ages),
        "staleness/max": max(ages),
    }


def _staleness(batch: Batch) -> MetricsRow:
    ages = Counter(batch.staleness())
    trajectories = ages.total()
    return {
        "staleness/mean": sum(age * count for age, count in ages.items()) / trajectories,
        "staleness/max": max(ages),
        **{f"staleness/share/{age}": ages[age] / trajectories for age in range(max(ages) + 1)},
    }


def _evaluation(evaluation: Evaluation | None) -> MetricsRow:
    if evaluation is None:
        return {}
    return {
        "eval/reward": evaluation.reward,
        "eval/turns_mean": evaluation.turns,
        "eval/version": evaluation.version,
    }


def _rates(row: Mapping[str, Any]) -> MetricsRow:
    seconds = row["time/step"]
    if not seconds:
        return {}
    trained = {key: row[key] / seconds for key in row if key.startswith("tokens/trained")}
    return {
        "tokens_per_second/generated": row["tokens/generated"] / seconds,
        **{key.replace("tokens/", "tokens_per_second/", 1): rate for key, rate in trained.items()},
        "idle/get_batch": row["time/get_batch"] / seconds,
    }
