"""The run folder: the files that a run leaves behind, and a lock that admits one process at a time.

config.yaml          the resolved job, loadable again
policy/              the policy the run started from, if it was made for it
metrics.jsonl        one object a step          events.jsonl        every decision
trajectories.jsonl   sampled transcripts        tensorboard/        the metrics again
checkpoints/step-N/  a Hugging Face folder plus state/ to continue from
logs/                one file per worker        summary.json        how it ended
report.html          the page to look at        lock                who works in it
events.undone.jsonl  events of steps that a resume did again
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollweave.config.job import Job
from rollweave.config.load import dump_job, load_job, save_resolved
from rollweave.errors import RunFolderError
from rollweave.observability.jsonl import read_object, replace_file, writing


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.policy = path / "policy"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.events = path / "events.jsonl"
        self.summary = path / "summary.json"
        self.report = path / "report.html"

    @classmethod
    def choose(cls, job: Job, path: Path | None) -> RunFolder:
        """A folder that is free, not made yet; refuses one that holds anything already."""
        chosen = path or Path("runs") / f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if chosen.is_file() or (chosen.is_dir() and any(chosen.iterdir())):
            raise RunFolderError(
                f"{chosen} already holds a run (or other files), and a run is never overwritten; name another folder "
                f"with --out, or go on with that run: rollweave train --resume {chosen}"
            )
        return cls(chosen)

    def create(self, job: Job) -> None:
        """Make it, with the resolved job in it."""
        save_resolved(job, self.path)
        self._make_folders()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not cls.holds_run(path):
            raise RunFolderError(f"{path} is not a run folder: it has no config.yaml; name one that `train` made")
        folder = cls(path)
        folder._make_folders()
        return folder

    @staticmethod
    def holds_run(path: Path) -> bool:
        return (path / "config.yaml").is_file()

    def job(self) -> Job:
        return load_job(self.config)

    def replace_job(self, job: Job) -> None:
        """The run goes on with another job."""
        with writing(self.config):
            replace_file(self.config, dump_job(job))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out while the block runs. The lock dies with its process, however that ends."""
        path = self.path / "lock"
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = read_object(path)
                known = {"pid", "host"} <= owner.keys()
                who = f"process {owner['pid']} on {owner['host']}" if known else "another process"
                raise RunFolderError(f"{self.path} is in use by {who}; wait for it or end it first") from None
            file.truncate(0)
            json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def _make_folders(self) -> None:
        """Make the folders, also if a process was killed at the very start, before it could make them."""
        self.checkpoints.mkdir(exist_ok=True)
        self.logs.mkdir(exist_ok=True)
