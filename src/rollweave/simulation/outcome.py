"""What a simulation found out: one flat object per run, the same for tables, JSON, experiments and the planner."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rollweave.pipelines.journal import Row


@dataclass(frozen=True, slots=True)
class PoolUse:
    """One pool, over the steps that count."""

    name: str
    device: str
    role: str
    count: int
    busy_share: float
    """Of the time its devices were paid for, doing the pool's work."""
    idle_share: float
    """The bubbles."""
    dollars_per_hour: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Averages leave out the scenario's `warmup` steps; totals are of the whole run."""

    name: str
    seed: int
    pipeline: str
    alpha: float
    devices: int
    steps: int
    seconds: float
    """Simulated, of the whole run."""
    step_seconds: float
    step_seconds_std: float
    """Over the steps that count."""
    tokens_per_second: float
    """Observed and sampled tokens of the trained batches over the time of the steps (RollArt's throughput)."""
    generated_per_second: float
    """Sampled tokens, the wasted ones too."""
    tokens_per_step: float
    """Observed and sampled, of a trained batch."""
    rollout_seconds: float
    """Per step: from the moment its engines had their weights until its batch was complete, as `get_batch` saw it."""
    time_shares: dict[str, float]
    """Of a step: get_batch, train, sync_exposed, other."""
    pools: tuple[PoolUse, ...]
    wasted_share: float
    """Of the tokens that ended, those that were not trained."""
    waste: dict[str, float]
    """Tokens per step by cause."""
    staleness_mean: float
    staleness_max: float
    reward_mean: float
    dollars_per_step: float
    dollars_per_million_tokens: float
    trajectories: int
    turns: int
    """Of all trained trajectories."""
    longest_trajectory_seconds: float
    """The longest that any trained trajectory took, its waits for engines and environments included."""
    failures: int
    """Attempts that an environment or its deadline ended."""
    prefilled_tokens: int
    recomputed_tokens: int
    """Context computed again: after an update, or because its cache was evicted."""
    evictions: int
    sync_seconds: float
    """Spent on weights, per step."""
    sync_exposed_seconds: float
    """The part of it in which engines stood still, per step."""
    reward_utilisation: float | None
    """Of the judge's devices; none: no judge."""
    rows: tuple[Row, ...]
    """One row of metrics per step, as in `metrics.jsonl` of a real run."""

    def json(self, rows: bool = False) -> str:
        """Byte for byte the same for the same scenario and seed."""
        data: dict[str, Any] = asdict(self)
        if not rows:
            del data["rows"]
        return json.dumps(data, sort_keys=True)

    def pool(self, name: str) -> PoolUse:
        return next(pool for pool in self.pools if pool.name == name)
