"""`python -m bench.mux_cost --traces DIR [--seeds 5] [--classes mixed,rh] [--no-opt] [--ablation] [--phases] [--json]`

Replays every trace (CSV) of a folder. Means over seeds; simulated, so the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from bench.mux_cost.ablation import ablations
from rollweave.mux.simulation.replay import ReplayResult
from rollweave.mux.simulation.simulate import bound, make_scenario, simulate
from rollweave.mux.simulation.trace import TraceJob, describe, read_trace

MOST_FOR_OPT = 40
"""More jobs at a time than this have too many possible groups; the lower bound stands in."""


@dataclass(frozen=True, slots=True)
class Row:
    trace: str
    jobs: str
    policy: str
    cost: float
    slo: float
    slo_per_iteration: float
    moves_per_hour: float
    over_rollmux: float
    over_opt: float
    over_bound: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mux_cost", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="a folder of CSV files, or one of them")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--classes", default="bl,rh,th,mixed")
    parser.add_argument("--policies", default="rollmux,default", help="names that `rollweave mux simulate` knows")
    parser.add_argument("--no-opt", action="store_true", help="leave out Opt, which takes most of the time")
    parser.add_argument("--ablation", action="store_true", help="also `default` with one switch off at a time")
    parser.add_argument("--phases", action="store_true", help="phase by phase instead of by mean rates")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    files = sorted(arguments.traces.glob("*.csv")) if arguments.traces.is_dir() else [arguments.traces]
    rows: list[Row] = []
    for file in files:
        for jobs in arguments.classes.split(","):
            found = measure(file.stem, read_trace(file), jobs, arguments)
            rows += found
            if not arguments.json:
                print(table(found, header=len(rows) == len(found)), flush=True)
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout)


def measure(name: str, trace: Sequence[TraceJob], jobs: str, arguments: argparse.Namespace) -> list[Row]:
    seeds = range(arguments.seeds)
    scenario = make_scenario(trace, jobs, phases=arguments.phases)
    runs = {policy: [simulate(scenario, policy, seed) for seed in seeds] for policy in arguments.policies.split(",")}
    if arguments.ablation:
        for label, policy in ablations().items():
            runs[label] = [simulate(scenario, policy, seed) for seed in seeds]
    if not arguments.no_opt and describe(trace).peak_concurrency <= MOST_FOR_OPT:
        runs["opt"] = [simulate(scenario, "opt", seed) for seed in seeds]
    bounds = [bound(scenario, seed) for seed in seeds]
    return [_row(name, jobs, policy, runs, bounds) for policy in runs]


def _row(name: str, jobs: str, policy: str, runs: dict[str, list[ReplayResult]], bounds: list[float]) -> Row:
    mine = runs[policy]

    def over(others: Sequence[float]) -> float:
        """Mean of the ratios, seed by seed."""
        return fmean(one.ledger.dollars / other for one, other in zip(mine, others, strict=True))

    def against(other: str) -> float:
        return over([run.ledger.dollars for run in runs[other]]) if other in runs else float("nan")

    return Row(
        name,
        jobs,
        policy,
        fmean(run.ledger.dollars for run in mine),
        fmean(run.slo_attainment for run in mine),
        fmean(run.ledger.iterations_in_slo / run.ledger.iterations for run in mine),
        fmean(run.moves / run.hours for run in mine),
        against("rollmux"),
        against("opt"),
        over(bounds),
    )


def table(rows: Sequence[Row], header: bool) -> str:
    width = max(24, *(len(row.policy) for row in rows)) + 1
    names = f"{'trace':<34}{'class':<7}{'policy':<{width}}{'cost k$':>9}{'SLO':>8}{'per iter':>10}{'moves/h':>9}"
    lines = [names + f"{'/rollmux':>10}{'/Opt':>7}{'/bound':>8}"] if header else []
    for row in rows:
        lines.append(
            f"{row.trace:<34}{row.jobs:<7}{row.policy:<{width}}{row.cost / 1000:>9.1f}{row.slo:>8.2%}"
            f"{row.slo_per_iteration:>10.2%}{row.moves_per_hour:>9.2f}"
            f"{_ratio(row.over_rollmux):>10}{_ratio(row.over_opt):>7}{_ratio(row.over_bound):>8}"
        )
    return "\n".join(lines)


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value == value else "-"


if __name__ == "__main__":
    main()
