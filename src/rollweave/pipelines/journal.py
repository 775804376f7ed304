"""Journal: turns what happened in a step into one row of metrics, and hands it to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean, pstdev

from rollweave.clock import Clock
from rollweave.engines.protocol import Engine, EngineStats
from rollweave.observability.events import Emitter
from rollweave.observability.metrics import Value
from rollweave.observability.phases import BusyTime, IdleMeter, Phase, StepClock
from rollweave.rollout.evaluation import Evaluation
from rollweave.rollout.ledger import AttemptEnd
from rollweave.rollout.scheduler import RolloutScheduler
from rollweave.training.protocol import Metrics
from rollweave.trajectory import Batch, Outcome, Trajectory

Row = dict[str, Value]
OnRow = Callable[[int, Row], None]
OnTrajectories = Callable[[int, list[Trajectory]], None]


class Journal:
    def __init__(
        self,
        clock: Clock,
        scheduler: RolloutScheduler,
        engines: Sequence[Engine],
        recorder: Emitter,
        on_row: Sequence[OnRow] = (),
        on_trajectories: Sequence[OnTrajectories] = (),
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._engines = list(engines)
        self._recorder = recorder
        self._on_row = list(on_row)
        self._on_trajectories = list(on_trajectories)
        self._began = clock.now()
        self._steps = StepClock(clock.now)
        self._trainer_busy = BusyTime(clock.now)
        self._trainer_idle = IdleMeter(clock.now)
        self._engine_idle = IdleMeter(clock.now, workers=len(self._engines))
        self._last_stats = EngineStats()
        self._last_tokens = dict.fromkeys(AttemptEnd, 0)

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
        row: Row = {
            **metrics,
            **_episodes(batch),
            **_evaluation(evaluation),
            **self._books(),
            **await self._engine_rates(),
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

    def record_evaluation(self, evaluation: Evaluation) -> None:
        """A row with nothing but an evaluation: of the version the last step made."""
        row: Row = {**_evaluation(evaluation), "time/elapsed": self._clock.now() - self._began}
        for listener in self._on_row:
            listener(evaluation.version, row)

    def saved(self, checkpoint: Path) -> None:
        self._recorder.emit("checkpoint.saved", folder=str(checkpoint))

    def _books(self) -> Row:
        ledger, scheduler = self._scheduler.ledger, self._scheduler
        row: Row = {f"ledger/{state}": count for state, count in ledger.summary()["attempts"].items()}
        for end in AttemptEnd:
            if end is not AttemptEnd.TRAINED:
                row[f"tokens/wasted/{end}"] = ledger.tokens[end] - self._last_tokens[end]
            self._last_tokens[end] = ledger.tokens[end]
        row["queue/groups_buffered"] = len(scheduler.buffer)
        row["queue/groups_running"] = scheduler.running
        return row

    async def _engine_rates(self) -> Row:
        stats = [await engine.stats() for engine in self._engines]
        sampled = sum(s.sampled_tokens for s in stats)
        recompute = sum(s.recompute_seconds for s in stats)
        row: Row = {
            "tokens/generated": sampled - self._last_stats.sampled_tokens,
            "idle/engine": self._engine_idle.sample(sum(s.busy_seconds for s in stats)),
            "memory/engine_mb": max(s.memory_mb for s in stats),
        }
        self._steps.add("recompute", recompute - self._last_stats.recompute_seconds)
        self._last_stats = EngineStats(sampled_tokens=sampled, recompute_seconds=recompute)
        return row


def _episodes(batch: Batch) -> Row:
    trajectories = list(batch.trajectories())
    rewards = [t.reward for t in trajectories]
    staleness = batch.staleness()
    names = dict.fromkeys(name for t in trajectories for name in t.rewards)
    return {
        "reward/mean": fmean(rewards),
        "reward/std": pstdev(rewards),
        **{f"reward/{name}": fmean(t.rewards.get(name, 0.0) for t in trajectories) for name in names},
        "episode/turns_mean": fmean(len(t.turns) for t in trajectories),
        "episode/tokens_mean": fmean(t.length for t in trajectories),
        "episode/truncated_share": fmean(t.outcome is Outcome.TRUNCATED for t in trajectories),
        "tokens/trained": batch.sampled_tokens,
        "staleness/mean": fmean(staleness),
        "staleness/max": max(staleness),
    }


def _evaluation(evaluation: Evaluation | None) -> Row:
    if evaluation is None:
        return {}
    return {
        "eval/reward": evaluation.reward,
        "eval/turns_mean": evaluation.turns,
        "eval/version": evaluation.version,
    }


def _add_rates(row: Row) -> None:
    seconds = row["time/step"]
    if isinstance(seconds, float) and seconds > 0:
        for what in ("generated", "trained"):
            tokens = row[f"tokens/{what}"]
            assert isinstance(tokens, int | float)
            row[f"tokens_per_second/{what}"] = tokens / seconds
