"""`python -m bench.control [--json] [--turns N]`: the control plane alone beside a bare asyncio ping-pong."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bench.control import pingpong, plane

BARS = {64: 15_000, 8192: 10_000}
"""Turns per second, by environments at once."""

SHARE = 0.2
"""Of the ping-pong, at least."""

REPETITIONS = 5
"""Alternating, so that a noisy moment meets both contestants; the best of each is reported, as noise only slows."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.control", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=100_000, help="turns to play per measurement")
    arguments = parser.parse_args()
    results = [measure(environments, max(arguments.turns, 20 * environments)) for environments in BARS]
    print(json.dumps(results) if arguments.json else _table(results))


def measure(environments: int, turns: int) -> dict[str, Any]:
    ours, floor = [], []
    for _ in range(REPETITIONS):
        ours.append(plane.turns_per_second(environments, turns))
        floor.append(pingpong.turns_per_second(environments, turns))
    speed, bare = round(max(ours)), round(max(floor))
    share = round(speed / bare, 3)
    return {
        "environments": environments,
        "turns_per_second": speed,
        "ping_pong_per_second": bare,
        "share_of_ping_pong": share,
        "microseconds_per_turn": round(1e6 / speed, 1),
        "bar_turns_per_second": BARS[environments],
        "bar_share": SHARE,
        "met": speed >= BARS[environments] and share >= SHARE,
    }


def _table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'environments':>12} {'turns/s':>9} {'bar':>7} {'ping-pong/s':>12} {'share':>6} {'us/turn':>8}"]
    for row in results:
        lines.append(
            f"{row['environments']:>12} {row['turns_per_second']:>9} {row['bar_turns_per_second']:>7} "
            f"{row['ping_pong_per_second']:>12} {row['share_of_ping_pong']:>6.0%} {row['microseconds_per_turn']:>8}"
            f"  {'met' if row['met'] else 'MISSED'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
