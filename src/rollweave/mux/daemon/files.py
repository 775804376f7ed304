"""The daemon's state folder: where everything of a cluster lies.

state.db      jobs, turns, the scheduler's state      token         who may read it may give orders (mode 0600)
daemon.json   where the daemon listens                lock          held by the one daemon of this folder
daemon.log    what it said                            jobs/ID/      a job: job.yaml, log, profile.json, run/
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollweave.errors import RollweaveError


class NoDaemon(RollweaveError):
    pass


@dataclass(frozen=True, slots=True)
class StateFolder:
    path: Path

    @classmethod
    def choose(cls, given: Path | None) -> StateFolder:
        """--state, else ROLLWEAVE_STATE, else a folder in the user's home."""
        named = given or os.environ.get("ROLLWEAVE_STATE") or Path.home() / ".rollweave" / "cluster"
        return cls(Path(named).absolute())

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def log(self) -> Path:
        return self.path / "daemon.log"

    @property
    def address_file(self) -> Path:
        return self.path / "daemon.json"

    def job(self, job: str) -> Path:
        return self.path / "jobs" / job

    def run(self, job: str) -> Path:
        return self.job(job) / "run"

    def publish(self, url: str) -> None:
        partial = self.address_file.with_suffix(".partial")
        partial.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        os.replace(partial, self.address_file)

    def address(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.address_file.read_text())
        except (OSError, ValueError):
            raise NoDaemon(
                f"no daemon has been started on {self.path}: run `rollweave cluster start` first (or name its folder "
                "with --state)"
            ) from None
        return found
