"""The run folder: what a run leaves behind, and never two runs in one.

config.yaml          the resolved job, loadable again
policy/              the policy the run started from, if it was made for it
metrics.jsonl        one object a step          events.jsonl        every decision
trajectories.jsonl   sampled transcripts        tensorboard/        the metrics again
checkpoints/step-N/  a Hugging Face folder plus state/
logs/                one file per worker        summary.json        how it ended
report.html          the page to look at
"""

from __future__ import annotations

import time
from pathlib import Path

from rollweave.config.job import Job
from rollweave.config.plan import save_resolved
from rollweave.errors import RunFolderError


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.policy = path / "policy"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"
        self.report = path / "report.html"

    @classmethod
    def choose(cls, job: Job, path: Path | None) -> RunFolder:
        """A folder that is free, not made yet; refuses one that holds anything already."""
        chosen = path or Path("runs") / f"{job.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if chosen.is_file() or (chosen.is_dir() and any(chosen.iterdir())):
            raise RunFolderError(
                f"{chosen} already holds a run (or other files), and a run is never overwritten; "
                "name another folder with --out"
            )
        return cls(chosen)

    def create(self, job: Job) -> None:
        """Make it, with the resolved job in it."""
        save_resolved(job, self.path)
        self.checkpoints.mkdir()
        self.logs.mkdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        if not (path / "config.yaml").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no config.yaml; name one that `train` made")
        return cls(path)
