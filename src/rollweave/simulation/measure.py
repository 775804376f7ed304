"""Measure: listens to a simulated run and makes an `SimulationResult` of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pstdev

from rollweave.clock import Clock
from rollweave.config.cluster import GENERATES, Pool
from rollweave.config.scenario import Scenario
from rollweave.fleet.fleet import EngineId, Fleet
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.meters import CAUSES
from rollweave.pipelines.journal import MetricsRow
from rollweave.simulation.hardware.machines import Machines
from rollweave.simulation.outcome import PoolUse, SimulationResult
from rollweave.trajectory import Trajectory

PHASES = ("get_batch", "train", "sync_exposed")


@dataclass(slots=True)
class _Mark:
    """Counters at one moment."""

    time: float = 0.0
    engines: dict[EngineId, float] = field(default_factory=dict)
    """Busy seconds of each."""
    trainer: float = 0.0
    judge_busy: float = 0.0
    judge_paid: float = 0.0
    prefill: float = 0.0


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
            self._longest = max(self._longest, _seconds(trajectory))

    def outcome(self, weights: WeightSync) -> SimulationResult:
        scenario, end = self._scenario, self._mark()
        rows = self._rows[scenario.warmup :]
        seconds = [_number(row, "time/step") for row in rows]
        time, tokens = sum(seconds), sum(self._tokens[scenario.warmup :])
        pools = tuple(self._pool_use(pool, end) for pool in scenario.cluster.pools)
        per_step = time / len(rows)
        dollars = sum(pool.dollars_per_hour for pool in pools) * per_step / 3600
        stats = [engine.counters for engine in self._machines.engines]
        return SimulationResult(
            name=scenario.name,
            seed=scenario.seed,
            pipeline=scenario.pipeline.type,
            alpha=scenario.alpha,
            devices=sum(pool.count for pool in scenario.cluster.pools),
            steps=len(self._rows),
            seconds=end.time,
            step_seconds=per_step,
            step_seconds_std=pstdev(seconds),
            tokens_per_second=tokens / time,
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
            reward_utilisation=self._reward_utilisation(end),
            rows=tuple(self._rows),
        )

    def _mark(self) -> _Mark:
        machines = self._machines
        judge = machines.judge.use() if machines.judge else None
        return _Mark(
            self._clock.now(),
            dict(zip(self._fleet.entries, (engine.busy_seconds() for engine in machines.engines), strict=True)),
            machines.core.busy_seconds,
            judge.busy if judge else 0.0,
            judge.paid if judge else 0.0,
            machines.prefill.busy_seconds if machines.prefill else 0.0,
        )

    def _pool_use(self, pool: Pool, end: _Mark) -> PoolUse:
        start = self._start
        elapsed = end.time - start.time
        busy, paid = 0.0, elapsed
        if pool.role == "prefill":
            busy = (end.prefill - start.prefill) / pool.workers
        elif pool.role in GENERATES:
            mine = [entry.id for entry in self._fleet.entries.values() if entry.pool == pool.name]
            busy = fmean(end.engines[id] - start.engines.get(id, 0.0) for id in mine)
        if pool.role in ("train", "colocated"):
            busy += end.trainer - start.trainer
        if pool.role == "reward":
            busy, paid = end.judge_busy - start.judge_busy, end.judge_paid - start.judge_paid
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
        paid = end.judge_paid - self._start.judge_paid
        return (end.judge_busy - self._start.judge_busy) / paid if paid else 0.0


def _seconds(trajectory: Trajectory) -> float:
    return sum(turn.generate_seconds + turn.environment_seconds for turn in trajectory.turns)


def _shares(rows: list[MetricsRow], per_step: float) -> dict[str, float]:
    shares = {phase: _mean(rows, f"time/{phase}") / per_step for phase in PHASES}
    return {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}


def _mean(rows: list[MetricsRow], key: str) -> float:
    return fmean(_number(row, key) for row in rows)


def _number(row: MetricsRow, key: str) -> float:
    value = row.get(key, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
