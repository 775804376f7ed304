"""`python -m tools.sharing [--steps N] [--repeats N] [--json]`: what sharing reward processes gains (`make sharing`).

Three jobs of `recipes/sharing/job.yaml` run at once, each with a server of reward processes of its own that are always
there; then the same jobs with one elastic server, which may start as many processes as those have together. Both
settings alternate. Compared are the utilisation (seconds in which a reward was computed, of the seconds that processes
were there, their start included) and the time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "sharing"
JOBS = 3
OWN = 8
"""Processes that a job has for itself."""
IDLE_SECONDS = 12.0
SKIPPED_STEPS = 2
"""The first ones start processes and connections."""
UTILISATION_BAR, STEP_BAR = 1.5, 1.05

Counts = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sharing", description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="train steps of each job")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sharing-") as temporary:
        folder = arguments.out or Path(temporary)
        repeats = [repeat(folder / str(number), arguments.steps, number % 2) for number in range(arguments.repeats)]
    found = summary(repeats)
    print(json.dumps(found) if arguments.json else in_words(found))
    return 0 if found["met"] else 1


def repeat(folder: Path, steps: int, shared_first: int) -> dict[str, Any]:
    """Both settings once."""
    settings = ("shared", "own") if shared_first else ("own", "shared")
    return {setting: run(setting, folder / setting, steps) for setting in settings}


def run(setting: str, folder: Path, steps: int) -> dict[str, Any]:
    """Three jobs at once: the utilisation of their reward processes, and the median step of each."""
    fixed = ["--minimum", str(OWN), "--maximum", str(OWN)]
    elastic = ["--maximum", str(JOBS * OWN), "--idle-seconds", str(IDLE_SECONDS)]
    with ExitStack() as servers:
        options = [fixed] * JOBS if setting == "own" else [elastic]
        urls = [servers.enter_context(server(some)) for some in options]
        jobs = [start_job(number, urls[number % len(urls)], folder, steps) for number in range(JOBS)]
        counts = watch(urls, jobs)
        codes = [job.wait() for job in jobs]
    if any(codes):
        raise SystemExit(f"{setting}: the jobs ended with {codes}; see {folder}")
    rows = [read_steps(folder / f"job-{number}") for number in range(JOBS)]
    busy, paid = sum(one["busy"] for one in counts), sum(one["paid"] for one in counts)
    return {"utilisation": busy / paid, "busy": busy, "paid": paid, "steps": [median(some) for some in rows]}


@contextmanager
def server(options: Sequence[str]) -> Iterator[str]:
    """`rollweave reward serve`; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["reward", "serve", "judge.py:short", "--port", str(port), *options]
    process = subprocess.Popen([sys.executable, "-m", "rollweave.cli.main", *words], cwd=RECIPE)
    try:
        while process.poll() is None:
            try:
                httpx2.get(f"http://127.0.0.1:{port}")
                break
            except httpx2.TransportError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def start_job(number: int, url: str, folder: Path, steps: int) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    changes = [f"seed={number}", f"training.steps={steps}", f"rewards=[{{function: '{url}/short'}}]"]
    words = ["train", str(RECIPE / "job.yaml"), *changes, "--out", str(folder / f"job-{number}")]
    with (folder / f"job-{number}.log").open("wb") as log:
        command = [sys.executable, "-m", "rollweave.cli.main", *words]
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})


def watch(urls: Sequence[str], jobs: Sequence[subprocess.Popen[bytes]]) -> list[Counts]:
    """What each server did from its first call until the first job ended. Before that call processes of a job's own are
    not counted, their start included: the jobs were starting."""
    first: dict[str, Counts] = {}
    last: dict[str, Counts] = {}
    with httpx2.Client() as http:
        while all(job.poll() is None for job in jobs):
            for url in urls:
                last[url] = http.get(url).json()
                if url not in first and last[url]["calls"]:
                    first[url] = last[url]
            time.sleep(0.1)
    return [{key: last[url][key] - first[url][key] for key in ("busy", "paid")} for url in urls if url in first]


def read_steps(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row["time/step"] for row in rows[SKIPPED_STEPS:]]


def summary(repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ratios are taken within a repeat; of the repeats, the median counts."""
    gains = [one["shared"]["utilisation"] / one["own"]["utilisation"] for one in repeats]
    slower = [median(one["shared"]["steps"][job] / one["own"]["steps"][job] for one in repeats) for job in range(JOBS)]
    return {
        "own": median(one["own"]["utilisation"] for one in repeats),
        "shared": median(one["shared"]["utilisation"] for one in repeats),
        "utilisation": median(gains),
        "steps": slower,
        "met": median(gains) >= UTILISATION_BAR and max(slower) <= STEP_BAR,
        "repeats": list(repeats),
    }


def in_words(found: dict[str, Any]) -> str:
    steps = ", ".join(f"{ratio:.3f}" for ratio in found["steps"])
    return "\n".join(
        [
            f"{'repeat':<8} {'own':>6} {'shared':>7}   median step of each job, own and shared",
            *(
                f"{number:<8} {one['own']['utilisation']:>6.1%} {one['shared']['utilisation']:>7.1%}   "
                + "  ".join(
                    f"{a:.2f} {b:.2f} s" for a, b in zip(one["own"]["steps"], one["shared"]["steps"], strict=True)
                )
                for number, one in enumerate(found["repeats"])
            ),
            f"utilisation {found['utilisation']:.2f}x (bar {UTILISATION_BAR}x); steps take {steps} of the time "
            f"(bar {STEP_BAR}): {'met' if found['met'] else 'MISSED'}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
