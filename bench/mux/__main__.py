"""`python -m bench.mux [--json] [--policy NAME] [--decisions N]`: latency of a decision by number of running jobs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from bench.mux.decide import measure

RUNNING = (5, 9, 13, 100, 500, 1000, 2000)
PAPER_MS = {5: 5.6, 9: 6.5, 13: 7.6, 100: 41.9, 500: 198.0, 1000: 318.0, 2000: 591.0}
"""RollMux's C++ (its figure on decision latency)."""
BAR_MS = 60.0
"""Median at 2,000 running jobs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mux", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--policy", action="append", help="rollmux and default unless given")
    parser.add_argument("--decisions", type=int, default=60, help="arrivals and departures each, per measurement")
    arguments = parser.parse_args()
    names = arguments.policy or ["rollmux", "default"]
    rows = [measure(name, running, arguments.decisions) for name in names for running in RUNNING]
    print(json.dumps(rows) if arguments.json else table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    heads = (
        ("policy", 14),
        ("running", 8),
        ("groups", 7),
        ("median ms", 10),
        ("arrive", 8),
        ("depart", 8),
        ("worst", 8),
    )
    lines = [" ".join(f"{head:>{width}}" for head, width in (*heads, ("paper", 7)))]
    for row in rows:
        met = "" if row["running"] < 2000 else "  met" if row["median_ms"] <= BAR_MS else "  MISSED"
        lines.append(
            f"{row['policy']:>14} {row['running']:>8} {row['groups']:>7} {row['median_ms']:>10.2f} "
            f"{row['arrive_median_ms']:>8.2f} {row['depart_median_ms']:>8.2f} {row['worst_ms']:>8.1f} "
            f"{PAPER_MS[row['running']]:>7.1f}{met}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
