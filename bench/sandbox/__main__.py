"""`python -m bench.sandbox [--runs N] [--json]`: a sandbox beside a bare start of the same interpreter.

One at a time, and eight at once: for eight the bare starts are eight at once too. Both alternate, so that other load on
the machine meets both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any

from rollweave.rewards.code.cases import AssertCase
from rollweave.rewards.code.launch import Launcher

BAR_MS = 25.0
"""The median of a sandbox, one at a time, less that of a bare start."""
AT_ONCE = 8
PROGRAM = "def add(a, b): return a + b"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sandbox", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each kind")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    launcher = Launcher()
    bare = [launcher.python, "-IB", "-c", "pass"]
    tried: dict[str, Callable[[], object]] = {
        "bare interpreter": lambda: subprocess.run(bare, check=True, env={}),
        "sandbox": lambda: launcher.run("pass"),
        "assertion": lambda: AssertCase("assert add(1, 2) == 3").check(launcher, PROGRAM, 10.0),
    }
    rows = [measure(tried, at_once, arguments.runs) for at_once in (1, AT_ONCE)]
    result = {"sandbox": launcher.describe(), "bar_ms": BAR_MS, "met": rows[0]["overhead_ms"] < BAR_MS, "rows": rows}
    print(json.dumps(result) if arguments.json else table(result))


def measure(tried: dict[str, Callable[[], object]], at_once: int, runs: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in tried}
    with ThreadPoolExecutor(at_once) as threads:
        for _ in range(max(2, runs // at_once)):
            for name, call in tried.items():
                times[name] += threads.map(lambda _, call=call: seconds(call), range(at_once))
    p50 = {name: 1e3 * median(found) for name, found in times.items()}
    p95 = {name: 1e3 * quantiles(found, n=20)[-1] for name, found in times.items()}
    overhead = p50["sandbox"] - p50["bare interpreter"]
    return {"at_once": at_once, "p50_ms": p50, "p95_ms": p95, "overhead_ms": overhead}


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def table(result: dict[str, Any]) -> str:
    lines = [f"{'at once':>8} {'':18} {'p50 ms':>8} {'p95 ms':>8}"]
    for row in result["rows"]:
        for name, p50 in row["p50_ms"].items():
            lines.append(f"{row['at_once']:>8} {name:18} {p50:>8.1f} {row['p95_ms'][name]:>8.1f}")
        lines.append(f"{row['at_once']:>8} {'overhead':18} {row['overhead_ms']:>8.1f}")
    lines.append(
        f"bar: {result['bar_ms']:g} ms over a bare start, one at a time: {'met' if result['met'] else 'MISSED'}"
    )
    return "\n".join([result["sandbox"], *lines])


if __name__ == "__main__":
    main()
