"""`python -m bench.envs [--json] [--quick] [--repeats 3]`: thousands of environments over Ray, beside the control plane
alone in one process (`bench.control`)."""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median
from typing import Any

from bench.control import plane as inline
from bench.control.null import TURNS
from bench.envs import plane
from bench.envs.parts import CONTEXT

ENVIRONMENTS, QUICK_ENVIRONMENTS = 4096, 128
STEPS, QUICK_STEPS = 3, 1
HOSTS = 2

BAR = 0.2
"""Of the turns per second of `bench.control` inline, at least."""

MOST_DRIVER_SHARE = 0.8
"""Of a core: a driver that is busier than that is the limit."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.envs", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a short form that shows that it works, not how fast")
    parser.add_argument("--repeats", type=int, default=3, help="of both contestants; they alternate")
    arguments = parser.parse_args()
    environments, steps = (QUICK_ENVIRONMENTS, QUICK_STEPS) if arguments.quick else (ENVIRONMENTS, STEPS)
    result = measure(environments, steps, 1 if arguments.quick else arguments.repeats)
    print(json.dumps(result, indent=1) if arguments.json else table(result))


def measure(environments: int, steps: int, repeats: int) -> dict[str, Any]:
    """Figures are medians; the share is taken within a repeat, so that a slow moment meets both contestants."""
    turns = steps * environments * TURNS
    bare, over_ray = [], []
    for repeat in range(repeats):
        bare.append(inline.turns_per_second(environments, turns))
        over_ray.append(plane.play(environments, turns, HOSTS))
        print(f"... {repeat + 1}/{repeats}: inline {bare[-1]:.0f}, Ray {_speed(over_ray[-1]):.0f}", file=sys.stderr)
    share = median(_speed(played) / speed for played, speed in zip(over_ray, bare, strict=True))
    seconds = sum(played.seconds for played in over_ray)
    cpu = {kind: round(sum(played.cpu_seconds[kind] for played in over_ray), 2) for kind in over_ray[0].cpu_seconds}
    at_once = min(played.at_once for played in over_ray)
    failed = sum(played.infra_failed for played in over_ray)
    return {
        "environments": environments,
        "context": CONTEXT,
        "hosts": HOSTS,
        "turns_per_second": round(median(map(_speed, over_ray))),
        "inline_turns_per_second": round(median(bare)),
        "share_of_inline": round(share, 3),
        "environments_at_once": at_once,
        "infra_failed": failed,
        "seconds": round(seconds, 1),
        "cpu_seconds": cpu,
        "driver_share_of_a_core": round(cpu["driver"] / seconds, 2),
        "bar_share": BAR,
        "met": share >= BAR and at_once == environments and not failed and cpu["driver"] <= MOST_DRIVER_SHARE * seconds,
    }


def _speed(played: plane.Played) -> float:
    return played.turns / played.seconds


def table(row: dict[str, Any]) -> str:
    cpu = ", ".join(f"{kind} {seconds}" for kind, seconds in sorted(row["cpu_seconds"].items(), key=lambda x: -x[1]))
    return "\n".join(
        [
            f"{row['environments_at_once']} of {row['environments']} environments at once on {row['hosts']} hosts, "
            f"contexts of {row['context']} tokens, {row['infra_failed']} attempts failed",
            f"turns/s over Ray {row['turns_per_second']}, inline {row['inline_turns_per_second']}: share "
            f"{row['share_of_inline']:.0%}, at least {row['bar_share']:.0%}",
            f"CPU seconds of {row['seconds']}: {cpu}; the driver uses {row['driver_share_of_a_core']:.0%} of a core, "
            f"at most {MOST_DRIVER_SHARE:.0%}",
            "met" if row["met"] else "MISSED",
        ]
    )


if __name__ == "__main__":
    main()
