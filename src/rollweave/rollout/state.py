"""What a checkpoint remembers of the control plane: enough to lose no task and train none twice.

Everything here is plain data: numbers, names, and the trajectories of finished members, with every token's version
and log-prob. Tasks of open groups are not kept: a group's number is its position in the task source.

On disk it is a small JSON and a sidecar: all arrays of one type lie end to end, and the JSON says which stretch of them
belongs where. The control plane only lays them together; `training/checkpoint.py` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from rollweave.errors import RunFolderError
from rollweave.rollout.ledger import LedgerState
from rollweave.training.checkpoint import DriverFiles
from rollweave.trajectory import Group, Trajectory

FORMAT = 2
"""Of the JSON. In format 1, tokens and log-probs were lists in it."""

STRETCHES = {"int32": "tokens", "float32": "logprobs"}
"""The sidecar's array for each type."""

MARK = "rollweave.array"
"""The only key of an object that stands in the JSON for a stretch of the sidecar."""

State = TypeVar("State")


@dataclass(slots=True)
class OpenGroup:
    """A group that is being played: members that are finished or being scored are kept, the others leased again."""

    id: int
    version: int
    """What its staleness counts from: the engines' version at admission, renewed until the first lease is out."""
    requeues: int = 0
    tries: dict[int, int] = field(default_factory=dict)
    """Leases issued so far, by member."""
    failures: dict[int, int] = field(default_factory=dict)
    """Infrastructure failures so far, by member."""
    finished: list[Trajectory] = field(default_factory=list)
    """Members that were played to the end and scored."""
    lost: list[int] = field(default_factory=list)
    """Members that have ended for good without a trajectory."""
    scoring: dict[str, Trajectory] = field(default_factory=dict)
    """By attempt: played to the end, but the reward is not there yet. After a resume it is computed again."""


@dataclass(slots=True)
class SchedulerState:
    """Taken between two steps."""

    version: int = 0
    """Train steps completed; the next batch is that of this step."""
    history: int = 0
    """How often the run had gone back to a checkpoint (`versions.py`)."""
    cursor: int = 0
    ledger: LedgerState = field(default_factory=LedgerState)
    buffered: list[Group] = field(default_factory=list)
    open: list[OpenGroup] = field(default_factory=list)
    kept_lately: list[bool] = field(default_factory=list)
    """What the filter made of the last groups."""

    def trajectories(self) -> Iterator[Trajectory]:
        """All that it keeps: of complete groups, and of open ones."""
        for whole in self.buffered:
            yield from whole.members
        for group in self.open:
            yield from (*group.finished, *group.scoring.values())


class _Sidecar:
    """Takes arrays out of what is written as JSON, and leaves a mark in their place."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in STRETCHES.values()}
        self._ends = dict.fromkeys(self._parts, 0)

    def take(self, value: Any) -> Any:
        """The mark of an array. What neither JSON nor the sidecar has a word for, in a user's data, becomes text."""
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.name not in STRETCHES:
            return str(value)
        name = STRETCHES[value.dtype.name]
        start = self._ends[name]
        end = self._ends[name] = start + len(value)
        self._parts[name].append(value)
        return {MARK: [name, start, end]}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate([np.empty(0, dtype), *self._parts[name]]) for dtype, name in STRETCHES.items()}


def adapter(kind: type[State]) -> TypeAdapter[State]:
    """What `pack` and `unpack` need to know of a type."""
    # As one of a union, because pydantic takes a configuration for a dataclass only from that class itself.
    exact = ConfigDict(arbitrary_types_allowed=True, ser_json_inf_nan="constants")
    return TypeAdapter(kind | None, config=exact)  # type: ignore[arg-type]


def pack(known: TypeAdapter[State], state: State) -> DriverFiles:
    """Exact: floats as Python writes them, infinities too."""
    sidecar = _Sidecar()
    plain = known.dump_python(state, mode="json", fallback=sidecar.take)
    return DriverFiles(json.dumps({"format": FORMAT, **plain}), sidecar.arrays())


def unpack(known: TypeAdapter[State], files: DriverFiles) -> State:
    """Raises RunFolderError for another format, ValueError for what is no state at all."""
    plain = json.loads(files.text)
    written = plain.pop("format", 1)
    if written != FORMAT:
        raise RunFolderError(
            f"this run was saved by another version of Rollweave (its checkpoints have format {written}, this version "
            f"reads format {FORMAT}): continue it with the version that began it, or start a new run with --out"
        )
    return known.validate_python(_restore(plain, files.arrays))


def _restore(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The same with arrays where their marks are."""
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {MARK}:
        name, start, end = value[MARK]
        return arrays[name][start:end]
    return {key: _restore(item, arrays) for key, item in value.items()}
