"""`python -m bench.mux_kill [--points 20] [--seed 0] [--json]`: kill -9 of a job, of the daemon, of both.

Jobs share one rollout core and one train core. At a random moment a job, the daemon or both are killed; a dead daemon
is started again after a random while. Each time every job must train on, and the jobs that were not killed must keep
their process, with no iteration longer by more than the start of the dead job, one phase and the daemon's absence. In
the end the daemon is stopped, and every run is checked as `bench.kill` checks one: ledgers exact, no task lost or
trained twice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

from bench.kill.check import problems
from bench.mux_kill.harness import VICTIMS, Harness, Point
from rollweave.runs.folder import RunFolder
from rollweave.runs.resume import rewind

JOB = Path(__file__).parent / "job.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.mux_kill", description=__doc__)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollweave-mux-kill-") as folder:
        points, found = measure(Path(folder), arguments.points, arguments.jobs, arguments.seed, say=not arguments.json)
    if arguments.json:
        print(json.dumps({"points": [asdict(point) for point in points], "problems": found}))
    else:
        print("\n".join(found) or f"{len(points)} kills: nothing lost, the other jobs untouched, ledgers exact")
    return 1 if found else 0


def measure(
    folder: Path, points: int, jobs: int, seed: int, victims: Sequence[str] = VICTIMS, say: bool = False
) -> tuple[list[Point], list[str]]:
    """Kill so many times; what happened at each point, and everything that is wrong in the end."""
    order = [victims[number % len(victims)] for number in range(points)]
    Random(seed).shuffle(order)
    harness = Harness(folder / "state", seed)
    done: list[Point] = []
    try:
        harness.begin(JOB, jobs)
        for number, victim in enumerate(order, 1):
            done.append(harness.point(number, victim))
            if say:
                print(done[-1], flush=True)
        left = harness.finish()
    finally:
        harness.close()
    books = [f"{run.parent.name}: {problem}" for run in harness.runs for problem in _as_resumed(run)]
    return done, [*(f"point {p.number}: {problem}" for p in done for problem in p.problems), *left, *books]


def _as_resumed(run: Path) -> list[str]:
    """What is wrong with a run where its next process would begin: at its newest checkpoint."""
    folder = RunFolder.open(run)
    rewind(folder, folder.job())
    return problems(run)


if __name__ == "__main__":
    raise SystemExit(main())
