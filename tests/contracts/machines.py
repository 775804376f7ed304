"""Two machines for a weight store: what is pushed on one is pulled on the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.weight_store import BUCKET_MB
from rollweave.weights.buckets import Fingerprint, Into
from rollweave.weights.relay import RelayStore, Remote


@dataclass
class TwoMachines:
    """A store like any other; `there` has a folder of its own, and only the remote between."""

    here: RelayStore
    there: RelayStore

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        return self.here.push(version, tensors)

    def pull(self, version: int, into: Into) -> Fingerprint:
        return self.there.pull(version, into)

    def latest(self) -> int | None:
        return self.here.latest()


def two_machines(folder: Path, remote: Remote, delta: bool = False, patience: float = 20.0) -> TwoMachines:
    """`folder` / "here": where the trainer's machine keeps its versions."""
    for name in ("here", "there"):
        (folder / name).mkdir(exist_ok=True)
    here = RelayStore(folder / "here", remote, BUCKET_MB, delta, patience)
    return TwoMachines(here, here.on(folder / "there"))
