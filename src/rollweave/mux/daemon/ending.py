"""How a job's process ended, read from what it left: nobody can ask a dead process, least of all a daemon that is not
its parent.

A run that ended in order says so in its `summary.json`, its own errors included. One that says nothing was killed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

Ending = Literal["finished", "failed", "killed"]


def how_it_ended(run: Path, log: Path) -> tuple[Ending, str, int]:
    """Also why, in its own words, and after how many steps (0: it does not say)."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "killed", last_words(log), 0
    steps = int(summary["steps"])
    if summary["exit_reason"] in ("completed", "target"):
        return "finished", "", steps
    if summary["exit_reason"] == "interrupted":
        words = "somebody interrupted its process (SIGINT); `rollweave submit --resume ID` goes on with it"
        return "failed", words, steps
    return "failed", str(summary.get("error") or last_words(log)), steps


def say_failed(run: Path, error: str) -> None:
    """For a process that ends with an error of its own before there is a run."""
    run.mkdir(parents=True, exist_ok=True)
    summary = {"exit_reason": "failed", "error": error, "steps": 0}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def forget_ending(run: Path) -> None:
    """Before it goes on: what an earlier process said of its end must not be taken for the next one's."""
    (run / "summary.json").unlink(missing_ok=True)


def last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(it has none)"
    return next((line.strip() for line in reversed(lines) if line.strip()), "(it is empty)")
