"""`python -m bench.rewards [--calls 2000] [--concurrency 256] [--seconds 0.1] [--timeout 3] [--outage 10] [--json]`

A functions-framework server without faults, with faults for half of the keys, the same with hedging, and one that
answers nothing but 503 at first. The exit code says whether all bars are met.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .delivery import Setup, deliver, problems


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rewards", description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=0.1, help="that the function takes")
    parser.add_argument("--timeout", type=float, default=3.0, help="of a try")
    parser.add_argument("--outage", type=float, default=10.0, help="seconds of nothing but 503")
    parser.add_argument("--json", action="store_true")
    arguments = vars(parser.parse_args())
    as_json = arguments.pop("json")
    found = measure(Setup(**arguments))
    print(json.dumps(found) if as_json else table(found))
    sys.exit(not found["met"])


def measure(setup: Setup) -> dict[str, Any]:
    runs = {
        "no faults": deliver(setup, "none"),
        "faults": deliver(setup, "keys"),
        "faults, hedged": deliver(setup, "keys", hedge_after=setup.timeout / 4),
        "outage": deliver(setup, "outage"),
    }
    missed = {name: problems(run, setup) for name, run in runs.items()}
    limit = 3 * runs["no faults"]["seconds"] + setup.timeout
    for name in ("faults", "faults, hedged"):
        if runs[name]["seconds"] > limit:
            missed[name].append(f"took {runs[name]['seconds']:.1f} s, and the bar is {limit:.1f} s")
    if not runs["outage"]["metrics"]["breaker_opened"]:
        missed["outage"].append("the breaker did not open")
    return {"runs": runs, "limit": limit, "missed": missed, "met": not any(missed.values())}


def table(found: dict[str, Any]) -> str:
    lines = [f"{'server':<16} {'seconds':>8} {'right':>12} {'tries':>6} {'p50':>6} {'p99':>6} {'opened':>7}  missed"]
    for name, run in found["runs"].items():
        row = run["metrics"]
        tries = sum(value for key, value in row.items() if key.startswith("tries/"))
        lines.append(
            f"{name:<16} {run['seconds']:>8.2f} {run['right']:>5} of {run['of']:<4} {tries:>5} "
            f"{row['seconds_p50']:>6.2f} {row['seconds_p99']:>6.2f} {row['breaker_opened']:>7}  "
            f"{'; '.join(found['missed'][name]) or 'none'}"
        )
    return "\n".join([*lines, f"with faults at most {found['limit']:.2f} s: {'met' if found['met'] else 'MISSED'}"])


if __name__ == "__main__":
    main()
