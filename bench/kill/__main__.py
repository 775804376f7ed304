"""`python -m bench.kill [--points 30] [--seed 0] [--victim NAME] [--json]`: kill -9 at random points of a real run.

One run on Ray, killed and resumed again and again: the machine (every process), the driver alone, trainer, engine or
host, at a random moment of training, saving or starting. Then it is finished, and its folder is checked: both ledgers
balance, every task was admitted once and trained at most once, steps are contiguous, and the whole run replays.
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
from bench.kill.harness import VICTIMS, Harness, Point

JOB = Path(__file__).parent / "job.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kill", description=__doc__)
    parser.add_argument("--points", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victim", choices=VICTIMS, help="only this one; default: all in turn")
    parser.add_argument("--out", type=Path, help="the run folder; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollweave-kill-") as temporary:
        run = arguments.out or Path(temporary) / "run"
        victims = (arguments.victim,) if arguments.victim else VICTIMS
        points, found = measure(run, arguments.points, arguments.seed, victims, say=not arguments.json)
    if arguments.json:
        print(json.dumps({"points": [asdict(point) for point in points], "problems": found}))
    else:
        print("\n".join(found) or f"{len(points)} kills: ledgers exact, no task lost or trained twice, replay the same")
    return 1 if found else 0


def measure(
    run: Path, points: int, seed: int, victims: Sequence[str] = VICTIMS, say: bool = False
) -> tuple[list[Point], list[str]]:
    """Kill a run so many times; what happened at each point, and everything that is wrong in the end."""
    order = [victims[n % len(victims)] for n in range(points)]
    Random(seed).shuffle(order)
    harness = Harness(JOB, run, seed, run.with_name(f"{run.name}.log"))
    done: list[Point] = []
    if say:
        print(f"{'point':>5}  {'victim':<18} {'step':>5}  {'when':<28} {'orphans':>8}  {'recovered':>9}")
    try:
        for number, name in enumerate(order, 1):
            done.append(harness.point(number, name))
            if say:
                print(_line(done[-1]), flush=True)
        harness.finish()
        left = harness.agents_left()
    finally:
        harness.close()
    return done, [*(f"point {p.number}: {p.problem}" for p in done if p.problem), *left, *problems(run)]


def _line(point: Point) -> str:
    again = "" if point.again is None else f", {point.again:.1f} s into start"
    when = f"{point.seconds:.1f} s{again}"
    orphans = "" if point.orphans_seconds is None else f"{point.orphans_seconds:.1f} s"
    recovered = f"{point.recovered_seconds:.1f} s"
    what = f"{point.number:>5}  {point.victim:<18} {point.step:>5}  {when:<28}"
    return f"{what} {orphans:>8}  {recovered:>9}  {point.problem}"


if __name__ == "__main__":
    raise SystemExit(main())
