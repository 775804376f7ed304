"""`python -m bench.async [--case latency|balanced|unbalanced|all] [--repeats N] [--json] [--out DIR]`

Each repeat runs every mode once, so that whatever else happens on the machine hits all of them; the order rotates.
It needs two cores to itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from .cases import CASES, MODES, Case
from .measure import Result, make_policy, run
from .report import figures, table


def main() -> None:
    arguments = _arguments()
    names = list(CASES) if arguments.case == "all" else [arguments.case]
    with tempfile.TemporaryDirectory(prefix="bench-async-") as temporary:
        folder = arguments.out or Path(temporary)
        results = [compare(case, arguments.repeats, folder) for name in names for case in CASES[name]]
    print(json.dumps(results, indent=1) if arguments.json else "\n\n".join(map(table, results)))


def compare(case: Case, repeats: int, folder: Path) -> dict[str, Any]:
    folder = folder / case.file.stem
    policy = make_policy(case, folder / "policy")
    results: dict[str, list[Result]] = {mode.name: [] for mode in MODES}
    for repeat in range(repeats):
        for place in range(len(MODES)):
            mode = MODES[(repeat + place) % len(MODES)]
            result = run(case, mode, policy, folder / f"{repeat}-{mode.name.replace(', ', '-').replace(' ', '-')}")
            results[mode.name].append(result)
            _say(f"{case.file.stem} {repeat + 1}/{repeats} {mode.name}: {result.steps_per_hour:,.0f} steps/h")
    return figures(case, results)


def _say(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.async", description=__doc__)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="keep the run folders here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
