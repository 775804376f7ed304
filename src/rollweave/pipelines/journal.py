"""Journal: turns what happened in a step into one row of metrics, and hands it to its listeners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean, pstdev
from typing import Any

from rollweave.clock import Clock
from rollweave.engines.protocol import EngineStats
from rollweave.fleet.fleet import Fleet
from rollweave.observability.accounting import Accountant
from rollweave.observability.events import Event, Recorder
from rollweave.observability.metrics import Value
from rollweave.observability.phases import BusyTime, IdleMeter, Phase, StepClock
from rollweave.rollout.evaluation import Evaluation
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch, Outcome, Trajectory

MetricsRow = dict[str, Value]
OnRow = Callable[[int, MetricsRow], None]
OnTrajectories = Callable[[int, list[Trajectory]], None]


class Journal:
    def __init__(
        self,
        clock: Clock,
        scheduler: RolloutScheduler,
        fleet: Fleet,
        recorder: Recorder,
        on_row: Sequence[OnRow] = (),
        on_trajectories: Sequence[OnTrajectories] = (),
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._fleet = fleet
        self._recorder = recorder
        self._on_row = list(on_row)
        self._on_trajectories = list(on_trajectories)
        self._began = clock.now()
        self._steps = StepClock(clock.now)
        self._trainer_busy = BusyTime(clock.now)
        self._trainer_idle = IdleMeter(clock.now)
        self._engine_idle = IdleMeter(clock.now)
        self._last_stats = EngineStats()
        self.accountant = Accountant()
        recorder.sinks.append(self.accountant)

    @contextmanager
    def phase(self, name: Phase, step: int) -> Iterator[None]:
        """Around a phase of the loop: it is an event, its time is counted, and training is the trainer's work."""
        work = self._trainer_busy.busy() if name == "train" else nullcontext()
        self._recorder.emit("phase.begin", phase=name, step=step)
        with self._steps.phase(name), work:
            yield
        self._recorder.emit("phase.end", phase=name, step=step)

    async def record(self, batch: Batch, metrics: Metrics, evaluation: Evaluation | None, checksum: str) -> None:
        """Write the step down."""
        row: MetricsRow = {
            **metrics,
            **_episodes(batch),
            **_staleness(batch),
            **_evaluation(evaluation),
            **await self._engine_rates(),
            **self.accountant.sample(self._recorder.now()),
            **self._books(),
            **self._steps.finish(),
            "idle/trainer": self._trainer_idle.sample(self._trainer_busy.seconds()),
            "policy/version": batch.step + 1,
            "weights/checksum": checksum,
            "time/elapsed": self._clock.now() - self._began,
        }
        _add_rates(row)
        for listener in self._on_row:
            listener(batch.step, row)
        for transcriber in self._on_trajectories:
            transcriber(batch.step, list(batch.trajectories()))
        self._recorder.emit("step.end", step=batch.step, ledger=self._scheduler.ledger.summary())

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """A row with nothing but an evaluation: of the version the last step made."""
        row: MetricsRow = {**_evaluation(evaluation), "time/elapsed": self._clock.now() - self._began}
        for listener in self._on_row:
            listener(evaluation.version, row)

    def resume(self, elapsed: float, events: Iterable[Event], rows: Sequence[Mapping[str, Any]]) -> None:
        """Go on counting where an earlier process of the run stopped."""
        self._began -= elapsed
        self.accountant.resume(events, rows)

    def reached(self, target: float, step: int) -> None:
        self._recorder.emit("target.reached", target=target, step=step)

    def _books(self) -> MetricsRow:
        books, scheduler = self._scheduler.ledger.summary(), self._scheduler
        return {
            **{f"ledger/task/{state}": count for state, count in books["tasks"].items()},
            **{f"ledger/attempt/{state}": count for state, count in books["attempts"].items()},
            "queue/groups_buffered": len(scheduler.buffer),
            "queue/groups_running": scheduler.running,
        }

    async def _engine_rates(self) -> MetricsRow:
        quiet = self.accountant.quiet
        stats = await self._fleet.look()
        now, last = stats.totals, self._last_stats
        self._last_stats = now
        tokens = self.accountant.tokens
        tokens.sampled(now.sampled_tokens - last.sampled_tokens, now.restarted_tokens - last.restarted_tokens)
        if quiet and self.accountant.quiet:
            tokens.settle()
        self._steps.add("recompute", now.recompute_seconds - last.recompute_seconds)
        return {
            "idle/engine": self._engine_idle.sample(now.busy_seconds, workers=self._fleet.size),
            "memory/engine_mb": stats.memory_mb,
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


def _add_rates(row: MetricsRow) -> None:
    seconds = row["time/step"]
    if isinstance(seconds, float) and seconds > 0:
        for what in ("generated", "trained"):
            tokens = row[f"tokens/{what}"]
            assert isinstance(tokens, int | float)
            row[f"tokens_per_second/{what}"] = tokens / seconds
        blocked = row["time/get_batch"]
        assert isinstance(blocked, float)
        row["idle/get_batch"] = blocked / seconds
