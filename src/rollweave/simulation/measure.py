"""Listens to a simulated run and makes a `SimulationResult` of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, fsum, sqrt
from statistics import fmean, pstdev

from rollweave.clock import Clock
from rollweave.config.cluster import GENERATES, Pool
from rollweave.config.scenario import Scenario
from rollweave.fleet.fleet import EngineId, Fleet
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.meters import CAUSES
from rollweave.pipelines.journal import MetricsRow
from rollweave.rewards.scaling import InstanceUse
from rollweave.simulation.hardware.machines import Machines
from rollweave.simulation.outcome import PoolUse, SimulationResult
from rollweave.trajectory import Trajectory

PHASES = ("get_batch", "train", "sync_exposed")
NO_JUDGE = InstanceUse(busy=0.0, paid=0.0)

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t at 97.5 % for 1, 2, ... degrees of freedom."""


@dataclass(slots=True)
class _Mark:
    """Counters at one moment."""

    time: float = 0.0
    engines: dict[EngineId, float] = field(default_factory=dict)
    """Busy seconds of each."""
    trainer: float = 0.0
    judge: InstanceUse = NO_JUDGE


class SimulationMeter:
    def __init__(self, scenario: Scenario, fleet: Fleet, machines: Machines, clock: Clock) -> None:
        self._scenario = scenario
        self._fleet = fleet
        self._machines = machines
        self._clock = clock
        self._rows: list[MetricsRow] = []
        self._tokens: list[int] = []
        self._turns = self._trajectories = 0
        self._longest = 0.0
        self._start = _Mark()

    def row(self, step: int, row: MetricsRow) -> None:
        self._rows.append({"step": step, **row})
        if len(self._rows) == self._scenario.warmup:
            self._start = self._mark()

    def trajectories(self, step: int, trajectories: list[Trajectory]) -> None:
        self._tokens.append(sum(trajectory.length for trajectory in trajectories))
        self._trajectories += len(trajectories)
        for trajectory in trajectories:
            self._turns += len(trajectory.turns)
            seconds = sum(turn.generate_seconds + turn.environment_seconds for turn in trajectory.turns)
            self._longest = max(self._longest, seconds)

    @property
    def steps_that_count(self) -> int:
        """Steps so far, without those of the warm-up."""
        return max(0, len(self._tokens) - self._scenario.warmup)

    def outcome(self, weights: WeightSync) -> SimulationResult:
        scenario, end = self._scenario, self._mark()
        rows = self._rows[scenario.warmup :]
        seconds = [_number(row, "time/step") for row in rows]
        batches = self._tokens[scenario.warmup :]
        time, tokens = sum(seconds), sum(batches)
        period = steps_of_a_period(scenario.pipeline.alpha)
        pools = tuple(self._pool_use(pool, end) for pool in scenario.cluster.pools)
        per_step = time / len(rows)
        dollars = sum(pool.dollars_per_hour for pool in pools) * per_step / 3600
        stats = [engine.counters for engine in self._machines.engines]
        return SimulationResult(
            name=scenario.name,
            seed=scenario.seed,
            pipeline=scenario.pipeline.type,
            alpha=scenario.pipeline.alpha,
            devices=sum(pool.count for pool in scenario.cluster.pools),
            steps=len(self._rows),
            seconds=end.time,
            step_seconds=per_step,
            step_seconds_std=pstdev(seconds),
            tokens_per_second=tokens / time,
            periods=len(rows) // period,
            throughput_margin=self._margin(throughput_margin(batches, seconds, period)),
            generated_per_second=_mean(rows, "tokens/generated") / per_step,
            tokens_per_step=tokens / len(rows),
            rollout_seconds=_mean(rows, "time/get_batch"),
            time_shares=_shares(rows, per_step),
            pools=pools,
            wasted_share=_number(self._rows[-1], "tokens/wasted_share"),
            waste={cause: _mean(rows, f"tokens/wasted/{cause}") for cause in CAUSES},
            staleness_mean=_mean(rows, "staleness/mean"),
            staleness_max=max(_number(row, "staleness/max") for row in rows),
            reward_mean=_mean(rows, "reward/mean"),
            dollars_per_step=dollars,
            dollars_per_million_tokens=dollars / (tokens / len(rows)) * 1e6,
            trajectories=self._trajectories,
            turns=self._turns,
            longest_trajectory_seconds=self._longest,
            failures=int(_number(self._rows[-1], "ledger/attempt/infra-failed")),
            prefilled_tokens=sum(one.prefilled_tokens for one in stats),
            recomputed_tokens=sum(one.recomputed_tokens for one in stats),
            evictions=sum(one.evictions for one in stats),
            sync_seconds=weights.sync_seconds / len(self._rows),
            sync_exposed_seconds=weights.sync_exposed_seconds / len(self._rows),
            update_seconds=weights.sync_seconds / max(1, weights.version),
            reward_utilisation=self._reward_utilisation(end),
            served=_served(rows),
            rows=tuple(self._rows),
        )

    def _margin(self, spread: float | None) -> float | None:
        """The spread, and what was trained of a lead that shrinks: episodes which the first steps had begun hide for
        many steps that engines are slower than the trainer, and periods are alike as long as they do."""
        if spread is None:
            return None
        rows = self._rows[self._scenario.warmup :]
        before = _number(self._rows[self._scenario.warmup - 1], "tokens/in_flight") if self._scenario.warmup else 0.0
        lead_used = before - _number(rows[-1], "tokens/in_flight")
        return spread + abs(lead_used) / sum(_number(row, "tokens/trained") for row in rows)

    def _mark(self) -> _Mark:
        machines = self._machines
        engines = dict(zip(self._fleet.entries, (engine.busy_seconds() for engine in machines.engines), strict=True))
        judge = machines.judge.use() if machines.judge else NO_JUDGE
        return _Mark(self._clock.now(), engines, machines.core.busy_seconds, judge)

    def _judge_use(self, end: _Mark) -> InstanceUse:
        start = self._start.judge
        return InstanceUse(end.judge.busy - start.busy, end.judge.paid - start.paid)

    def _pool_use(self, pool: Pool, end: _Mark) -> PoolUse:
        start = self._start
        elapsed = end.time - start.time
        busy, paid = 0.0, elapsed
        if pool.role in GENERATES:
            mine = [entry.id for entry in self._fleet.entries.values() if entry.pool == pool.name]
            busy = fsum(end.engines[id] - start.engines.get(id, 0.0) for id in mine) / pool.workers
        if pool.role in ("train", "colocated"):
            busy += end.trainer - start.trainer
        if pool.role == "reward":
            busy, paid = self._judge_use(end)
        if pool.role == "environment":  # as far as the control plane knows: episodes under way, of those it may have
            busy = elapsed * (1.0 - _mean(self._rows, "idle/environments"))
        share = min(1.0, busy / paid) if paid else 0.0
        price = self._scenario.cluster.price(pool)
        if pool.device == "serverless":  # paid by the second that an instance lives
            price *= paid / (elapsed * pool.count)
        return PoolUse(pool.name, pool.device, pool.role, pool.count, share, 1.0 - share, price)

    def _reward_utilisation(self, end: _Mark) -> float | None:
        if self._machines.judge is None:
            return None
        use = self._judge_use(end)
        return use.busy / use.paid if use.paid else 0.0


def steps_of_a_period(alpha: float) -> int:
    """Steps after which a run repeats itself.

    The groups of a batch are admitted when the batch 1 + alpha steps before it is trained. So 1 + alpha chains of
    training, new weights and longest episode run side by side, and their steps are unequal: one chain may wait long
    for its data while the next finds all of it ready. Only 1 + alpha steps in a row show every chain once.
    """
    return 1 + ceil(alpha)


def throughput_margin(tokens: Sequence[int], seconds: Sequence[float], period: int) -> float | None:
    """Half of the 95 % interval of tokens per second, as a share of it; none: fewer than two whole periods.

    Throughput is a ratio of two sums over the periods, so the spread is that of what each period's tokens are more
    than its seconds at the mean rate.
    """
    whole = len(tokens) // period
    if whole < 2:
        return None
    ends = range(period, whole * period + 1, period)
    trained = [sum(tokens[end - period : end]) for end in ends]
    taken = [sum(seconds[end - period : end]) for end in ends]
    rate = sum(trained) / sum(taken)
    freedom = whole - 1
    variance = sum((more - rate * time) ** 2 for more, time in zip(trained, taken, strict=True)) / freedom
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96 + 2.5 / freedom
    return quantile * sqrt(variance / whole) / fmean(trained)


def _served(rows: list[MetricsRow]) -> dict[str, dict[str, float]]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for key in row:
            if key.startswith("served/trajectories/"):
                task, pool = key.removeprefix("served/trajectories/").split("/")
                counts.setdefault(task, Counter())[pool] += int(_number(row, key))
    return {
        task: {pool: count / of_task.total() for pool, count in sorted(of_task.items())}
        for task, of_task in sorted(counts.items())
    }


def _shares(rows: list[MetricsRow], per_step: float) -> dict[str, float]:
    shares = {phase: _mean(rows, f"time/{phase}") / per_step for phase in PHASES}
    return {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}


def _mean(rows: list[MetricsRow], key: str) -> float:
    return fmean(_number(row, key) for row in rows)


def _number(row: MetricsRow, key: str) -> float:
    value = row.get(key, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
