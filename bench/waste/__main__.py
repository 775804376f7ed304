"""`python -m bench.waste [--seeds 4] [--json]`

Virtual time: the same numbers on every machine, in a minute.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from statistics import fmean

from tests.world.world import SimulatedRun, simulate

from bench.waste.scenarios import PLAIN, SCENARIOS, SKIPPED_STEPS, Scenario
from rollweave.clock import run_virtual


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over seeds."""

    scenario: str
    step_seconds: float
    kept_share: float
    """Of the groups that were played to their end, those the filter kept."""
    wasted: dict[str, float]
    """Share of all tokens that attempts ended with, by cause."""
    duration_bias: float
    staleness: float

    @property
    def wasted_share(self) -> float:
        return sum(self.wasted.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waste", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(scenario, arguments.seeds) for scenario in SCENARIOS]
    print(json.dumps([asdict(row) for row in rows]) if arguments.json else table(rows))


def measure(scenario: Scenario, seeds: int) -> Figures:
    runs = [_measure(scenario, seed) for seed in range(seeds)]
    causes = sorted({cause for run in runs for cause in run.wasted})
    return Figures(
        scenario.name,
        fmean(run.step_seconds for run in runs),
        fmean(run.kept_share for run in runs),
        {cause: fmean(run.wasted.get(cause, 0.0) for run in runs) for cause in causes},
        fmean(run.duration_bias for run in runs),
        fmean(run.staleness for run in runs),
    )


def _measure(scenario: Scenario, seed: int) -> Figures:
    run = run_virtual(lambda clock: simulate(scenario.job(seed), scenario.world(), clock))
    taken = [event.time for event in run.recorder.named("batch.ready")][SKIPPED_STEPS:]
    complete, filtered = (len(run.recorder.named(name)) for name in ("group.complete", "group.filtered"))
    return Figures(
        scenario.name,
        (taken[-1] - taken[0]) / (len(taken) - 1),
        complete / (complete + filtered),
        _wasted(run),
        _mean(run, "bias/duration"),
        _mean(run, "staleness/mean"),
    )


def _wasted(run: SimulatedRun) -> dict[str, float]:
    tokens: Counter[str] = Counter()
    for event in run.recorder.named("attempt.end"):
        tokens[str(event.data["end"])] += int(str(event.data["tokens"]))
    return {end: count / tokens.total() for end, count in sorted(tokens.items()) if end != "trained" and count}


def _mean(run: SimulatedRun, key: str) -> float:
    values = [row[key] for row in run.rows[SKIPPED_STEPS:]]
    return fmean(value for value in values if isinstance(value, float | int))


def table(rows: list[Figures]) -> str:
    plain = next(row for row in rows if row.scenario == PLAIN)
    lines = [f"  {'':24}{'step s':>8}{'speed':>8}{'kept':>7}{'bias':>8}{'stale':>7}{'wasted':>8}  by cause"]
    for row in rows:
        speed = plain.step_seconds / row.step_seconds
        causes = ", ".join(f"{cause} {share:.1%}" for cause, share in row.wasted.items())
        lines.append(
            f"  {row.scenario:24}{row.step_seconds:8.2f}{speed:7.2f}x{row.kept_share:7.0%}{row.duration_bias:+8.1%}"
            f"{row.staleness:7.2f}{row.wasted_share:8.1%}  {causes}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
