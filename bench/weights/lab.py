"""A job in the lab: its trainer on one lab host, three engines and the driver on another, a slow link between them.

`compare` runs it with `background` and with `blocking` transfer: the same copy through the same store, and engines that
go on meanwhile or stand still.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tools.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("linked.yaml")
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
LIMIT = "200mbit"
BAR = 1.10
"""Times the steps per hour of a blocking transfer."""
SHARE = 0.2, 0.5
"""Of a step, that the transfer has to take for the bar to mean something."""
WARM = 4
"""Steps that are not counted."""
START_SECONDS = 300.0

CORES = {"rollout": [0], "train": [1]}
"""Two machines do not share their cores."""

Row = dict[str, Any]


class LinkedRun:
    """The job on a lab with the hosts `train` and `rollout`, started on the latter; its files so far."""

    def __init__(self, lab: Lab, log: Path, *overrides: str) -> None:
        self.lab, self.log = lab, log
        self.trainer, self.driver = lab["train"], lab["rollout"]
        address = self.driver.start_ray(num_cpus=3, labels={"pool": "rollout"})
        self.trainer.start_ray(self.driver, num_cpus=1, labels={"pool": "train"})
        self.trainer.limit(LIMIT)
        words = ("train", str(JOB), f"runtime.address={address}", *overrides, "--out", "/tmp/run")
        self.process = self.driver.start([sys.executable, "-m", "rollweave.cli.main", *words], ENVIRONMENT, log)

    def rows(self, name: str) -> list[Row]:
        file = self.driver.path(f"/tmp/run/{name}.jsonl")
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def events(self, name: str) -> list[Row]:
        return [event["data"] for event in self.rows("events") if event["name"] == name]

    def until(self, holds: Callable[[], object], what: str, seconds: float = 120.0) -> None:
        ends = time.monotonic() + seconds
        while not holds():
            said = self.log.read_text()[-3000:]
            if self.process.poll() is not None:
                raise RuntimeError(f"the run ended before {what}:\n{said}")
            if time.monotonic() > ends:
                raise RuntimeError(f"not within {seconds} s: {what}\n{said}")
            time.sleep(0.05)  # what is waited for happens in other processes, and says so in a file

    def finish(self, seconds: float) -> None:
        if self.process.wait(timeout=seconds):
            raise RuntimeError(f"the run failed:\n{self.log.read_text()[-3000:]}")


def compare(short: bool) -> Row:
    steps = WARM + (2 if short else 20)
    found = {transfer: _measured(transfer, steps) for transfer in ("blocking", "background")}
    gain = found["blocking"]["step_s"] / found["background"]["step_s"]
    share = found["blocking"]["stage_s"] / found["blocking"]["step_s"]
    met = gain >= BAR and SHARE[0] <= share <= SHARE[1]
    return {**found, "gain": gain, "transfer_share": share, "met": met}


def _measured(transfer: str, steps: int) -> Row:
    """Medians per step, in seconds."""
    with tempfile.TemporaryDirectory(prefix="bench-weights-") as folder, Lab(["rollout", "train"], cores=CORES) as lab:
        run = LinkedRun(lab, Path(folder) / "log", f"weights.transfer={transfer}", f"training.steps={steps}")
        run.finish(START_SECONDS + 30.0 * steps)
        rows = run.rows("metrics")[WARM:]
        stages = run.events("weights.stage")[WARM:]
        commits = run.events("weights.commit")[WARM:]
    return {
        "step_s": median(row["time/step"] for row in rows),
        "get_batch_s": median(row["time/get_batch"] for row in rows),
        "train_s": median(row["time/train"] for row in rows),
        "sync_s": median(row["time/sync"] for row in rows),
        "sync_exposed_s": median(row["time/sync_exposed"] for row in rows),
        "stage_s": median(event["seconds"] for event in stages),
        "moved_mb": median(event["moved_bytes"] for event in stages) / 1e6,
        "engines_stood_s": median(event["exposed_seconds"] for event in commits),
    }


def text(found: Row) -> str:
    lines = []
    for transfer in ("blocking", "background"):
        row = found[transfer]
        lines.append(
            f"{transfer:10} {3600 / row['step_s']:.0f} steps an hour: a step {row['step_s']:.2f} s (batch "
            f"{row['get_batch_s']:.2f} s, train {row['train_s']:.2f} s), weights {row['sync_s']:.2f} s of which the "
            f"loop waited {row['sync_exposed_s']:.2f} s; {row['moved_mb']:.1f} MB crossed in {row['stage_s']:.2f} s"
        )
    word = "met" if found["met"] else "NOT MET"
    return "\n".join(
        [
            *lines,
            f"background {found['gain']:.2f}x the steps of blocking (bar {BAR:.2f}x; the transfer is "
            f"{found['transfer_share']:.0%} of a blocking step, to be {SHARE[0]:.0%} to {SHARE[1]:.0%}) {word}",
        ]
    )
