"""`python -m bench.mux_real [--json]`: three training jobs on two cores, in turns, against each alone in turn.

Solo-D: a job has one core for rollout and one for training, and one of them always idles. Multiplexed: all three share
the two cores through the daemon. Measured: steps per hour of both, the slow-down of every job against its SLO, cold
against warm starts, and whether every job learns exactly the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.mux_real.measure import Case, measure

HERE = Path(__file__).parent
JOBS = ("rollout_heavy", "train_heavy", "balanced")
SLO = 2.0
"""A cycle of these three takes about 1.6 times the shortest of them. Closer to that the scheduler may refuse one:
profiles are worst cases, and machines are noisy."""

FASTER, WARMER = 1.5, 10.0
"""The bar: steps per hour against Solo-D, cold start against warm start."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.mux_real", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--slo", type=float, default=SLO)
    parser.add_argument("--keep", type=Path, help="where to leave the runs; default: nowhere")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollweave-mux-") as temporary:
        workplace = arguments.keep or Path(temporary)
        case = measure([HERE / f"{name}.yaml" for name in JOBS], workplace, arguments.steps, arguments.slo)
    found = problems(case)
    if arguments.json:
        print(json.dumps({**asdict(case), "speed_up": case.speed_up, "problems": found}))
    else:
        print(report(case))
        print("\n".join(found) or "all as it should be")
    return 1 if found else 0


def report(case: Case) -> str:
    head = (
        f"{'job':<15} {'rollout':>8} {'train':>8} {'alone':>8} {'planned':>8} {'shared':>8} {'slow-down':>9} {'SLO':>5}"
    )
    head += f" {'cold':>7} {'warm':>7}  weights"
    lines = [
        f"{job.name:<15} {job.t_roll:>6.2f} s {job.t_train:>6.2f} s {job.solo:>6.2f} s {job.planned:>6.2f} s "
        f"{job.shared:>6.2f} s {job.slow_down:>8.2f}x {job.slo:>4g}x {job.cold:>5.1f} s {1e3 * job.warm:>4.0f} ms  "
        f"{'identical' if job.identical else 'DIFFER'}"
        for job in case.jobs
    ]
    return "\n".join(
        [
            head,
            *lines,
            "",
            f"alone, in turn   {case.solo_rate:6.0f} steps/h",
            f"multiplexed      {case.shared_rate:6.0f} steps/h, over {case.together_seconds:.0f} s in which all ran",
            f"speed-up         {case.speed_up:6.2f}x",
            f"with everything  {case.solo_whole_seconds:6.1f} s alone, {case.whole_seconds:.1f} s multiplexed, "
            f"of which {case.profile_seconds:.1f} s until all were profiled",
        ]
    )


def problems(case: Case) -> list[str]:
    late = [f"{j.name} is {j.slow_down:.2f}x slower, its SLO is {j.slo:g}x" for j in case.jobs if j.slow_down > j.slo]
    other = [f"{job.name} learnt other weights than alone" for job in case.jobs if not job.identical]
    cool = [f"{j.name}: warm start {j.warm:.3f} s, cold {j.cold:.1f} s" for j in case.jobs if j.cold < WARMER * j.warm]
    slow = [f"speed-up {case.speed_up:.2f}x is below {FASTER}x"] if case.speed_up < FASTER else []
    return [*slow, *late, *other, *cool]


if __name__ == "__main__":
    raise SystemExit(main())
