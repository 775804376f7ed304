"""An outcome for people: aligned, with units."""

from __future__ import annotations

from rollweave.config.scenario import Scenario
from rollweave.simulation.outcome import Outcome, PoolUse


def table(scenario: Scenario, outcome: Outcome) -> str:
    mode = outcome.pipeline + (f", staleness bound (alpha) {outcome.alpha:g}" if outcome.alpha else "")
    counted = outcome.steps - scenario.warmup
    return "\n".join(
        [
            f"{outcome.name}: {scenario.model}, {mode}, {outcome.devices:,} devices, seed {outcome.seed}",
            "",
            _line("step", f"{outcome.step_seconds:,.1f} s", f"± {outcome.step_seconds_std:.1f} over {counted} steps"),
            _line("throughput", f"{outcome.tokens_per_second:,.0f} tokens/s", "observed and sampled, trained"),
            _line("batch", f"{outcome.tokens_per_step:,.0f} tokens", _episodes(outcome)),
            _line("cost", f"${outcome.dollars_per_step:,.2f} a step", f"${_per_million(outcome)} a million tokens"),
            _line("staleness", f"{outcome.staleness_mean:.2f} versions", f"at most {outcome.staleness_max:g}"),
            _line("wasted", f"{outcome.wasted_share:.1%} of tokens", _causes(outcome)),
            _line("weights", f"{outcome.sync_seconds:.1f} s a step", f"{outcome.sync_exposed_seconds:.1f} s exposed"),
            _line("caches", f"{outcome.prefilled_tokens:,} prefilled", _recomputed(outcome)),
            _line("failures", f"{outcome.failures:,} attempts", "tried again"),
            "",
            "of a step's time: " + ", ".join(f"{name} {share:.0%}" for name, share in outcome.time_shares.items()),
            "",
            f"{'pool':<12} {'device':<10} {'role':<10} {'count':>6} {'busy':>6} {'idle':>6} {'$/h':>10}",
            *map(_pool, outcome.pools),
        ]
    )


def _line(name: str, value: str, more: str) -> str:
    return f"{name:<12}{value:>22}   {more}".rstrip()


def _pool(pool: PoolUse) -> str:
    return (
        f"{pool.name:<12} {pool.device:<10} {pool.role:<10} {pool.count:>6,} {pool.busy_share:>6.0%} "
        f"{pool.idle_share:>6.0%} {pool.dollars_per_hour:>10,.2f}"
    )


def _episodes(outcome: Outcome) -> str:
    turns = outcome.turns / outcome.trajectories
    return (
        f"{outcome.trajectories // outcome.steps:,} episodes of {turns:.1f} turns, "
        f"the longest {outcome.longest_trajectory_seconds:,.0f} s"
    )


def _per_million(outcome: Outcome) -> str:
    return f"{outcome.dollars_per_million_tokens:.2f}"


def _causes(outcome: Outcome) -> str:
    causes = {cause: tokens for cause, tokens in outcome.waste.items() if tokens}
    return ", ".join(f"{cause} {tokens:,.0f} a step" for cause, tokens in causes.items())


def _recomputed(outcome: Outcome) -> str:
    return f"{outcome.recomputed_tokens:,} computed again, {outcome.evictions:,} evictions"
