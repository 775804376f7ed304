"""`python -m tools.record NAME [ARGUMENTS ...]`: run `python -m bench.NAME ARGUMENTS --json`, and keep what it found.

Writes `bench/results/NAME.json`: the figures, with the machine, the date, the commit and the command. For figures that
are quoted in the docs; to be run by hand, on a quiet machine.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def main() -> None:
    name, *arguments = sys.argv[1:]
    command = ["python", "-m", f"bench.{name}", *arguments, "--json"]
    began = datetime.now(UTC)
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode} and printed no figures")
    print(write(name, " ".join(command), began, json.loads(done.stdout)))
    sys.exit(done.returncode)


def write(name: str, command: str, began: datetime, figures: Any) -> Path:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    found = {"command": command, "date": f"{began:%Y-%m-%d}", "commit": commit(), "machine": machine()}
    file.write_text(json.dumps({**found, "figures": figures}, indent=1) + "\n", encoding="utf-8")
    return file


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "ray", "transformers")},
    }


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return said.stdout.strip()


if __name__ == "__main__":
    main()
