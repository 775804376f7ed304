"""What a simulation found out: one flat object per run, the same for tables, JSON, experiments and the planner."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rollweave.config.scenario import Scenario
from rollweave.pipelines.journal import MetricsRow


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
class SimulationResult:
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
    periods: int
    """Whole periods of 1 + alpha steps among the steps that count."""
    throughput_margin: float | None
    """Half of the 95 % interval of `tokens_per_second` over those periods, as a share of it, and by how much less was
    generated than trained meanwhile, or more; none: too few periods."""
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
    update_seconds: float
    """Of one update of the weights: from the trainer's copy until the last engine has it."""
    reward_utilisation: float | None
    """Of the judge's devices; none: no judge."""
    served: dict[str, dict[str, float]]
    """By task and pool: the share of the task's trajectories that the pool served, over the steps that count. Empty if
    there is one pool of engines."""
    rows: tuple[MetricsRow, ...]
    """One row of metrics per step, as in `metrics.jsonl` of a real run."""

    def json(self, rows: bool = False) -> str:
        """Byte for byte the same for the same scenario and seed."""
        data: dict[str, Any] = asdict(self)
        if not rows:
            del data["rows"]
        return json.dumps(data, sort_keys=True)

    def pool(self, name: str) -> PoolUse:
        return next(pool for pool in self.pools if pool.name == name)


def table(scenario: Scenario, outcome: SimulationResult) -> str:
    """For people: aligned, with units."""
    mode = outcome.pipeline + (f", staleness bound (alpha) {outcome.alpha:g}" if outcome.alpha else "")
    counted = outcome.steps - scenario.warmup
    recomputed = f"{outcome.recomputed_tokens:,} computed again, {outcome.evictions:,} evictions"
    per_million = f"${outcome.dollars_per_million_tokens:.2f} a million tokens"
    causes = ", ".join(f"{cause} {tokens:,.0f} a step" for cause, tokens in outcome.waste.items() if tokens)
    return "\n".join(
        [
            f"{outcome.name}: {scenario.model}, {mode}, {outcome.devices:,} devices, seed {outcome.seed}",
            "",
            _line("step", f"{outcome.step_seconds:,.1f} s", f"± {outcome.step_seconds_std:.1f} over {counted} steps"),
            _line("throughput", f"{outcome.tokens_per_second:,.0f} tokens/s", _margin(outcome)),
            _line("batch", f"{outcome.tokens_per_step:,.0f} tokens", _episodes(outcome)),
            _line("cost", f"${outcome.dollars_per_step:,.2f} a step", per_million),
            _line("staleness", f"{outcome.staleness_mean:.2f} versions", f"at most {outcome.staleness_max:g}"),
            _line("wasted", f"{outcome.wasted_share:.1%} of tokens", causes),
            _line("weights", f"{outcome.sync_seconds:.1f} s a step", f"{outcome.sync_exposed_seconds:.1f} s exposed"),
            _line("caches", f"{outcome.prefilled_tokens:,} prefilled", recomputed),
            _line("failures", f"{outcome.failures:,} attempts", "tried again"),
            "",
            "of a step's time: " + ", ".join(f"{name} {share:.0%}" for name, share in outcome.time_shares.items()),
            "",
            f"{'pool':<12} {'device':<10} {'role':<10} {'count':>6} {'busy':>6} {'idle':>6} {'$/h':>10}",
            *map(_pool, outcome.pools),
            *([""] if outcome.served else []),
            *(_served(task, shares) for task, shares in outcome.served.items()),
        ]
    )


def _line(name: str, value: str, more: str) -> str:
    return f"{name:<12}{value:>22}   {more}".rstrip()


def _pool(pool: PoolUse) -> str:
    return (
        f"{pool.name:<12} {pool.device:<10} {pool.role:<10} {pool.count:>6,} {pool.busy_share:>6.0%} "
        f"{pool.idle_share:>6.0%} {pool.dollars_per_hour:>10,.2f}"
    )


def _served(task: str, shares: dict[str, float]) -> str:
    return f"{task}: " + ", ".join(f"{share:.0%} on {pool}" for pool, share in shares.items())


def _margin(outcome: SimulationResult) -> str:
    found = outcome.throughput_margin
    interval = "" if found is None else f"± {found:.0%} (95 % interval over {outcome.periods} periods); "
    return f"{interval}observed and sampled, trained"


def _episodes(outcome: SimulationResult) -> str:
    turns = outcome.turns / outcome.trajectories
    return (
        f"{outcome.trajectories // outcome.steps:,} episodes of {turns:.1f} turns, "
        f"the longest {outcome.longest_trajectory_seconds:,.0f} s"
    )
