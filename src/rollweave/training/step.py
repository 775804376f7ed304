"""OpenStep: what a trainer holds of a train step between `begin` and `finish`."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollweave.errors import UntrainableBatch
from rollweave.training.diagnostics import StepRecord
from rollweave.training.packing import PackedRow
from rollweave.trajectory import Batch, Group


@dataclass(slots=True)
class OpenStep:
    number: int
    stream: bool
    """Whether the gradients of groups are computed as they come."""
    groups: dict[int, Group] = field(default_factory=dict)
    rows: list[PackedRow] = field(default_factory=list)
    """Of the groups whose advantages are known."""
    record: StepRecord = field(default_factory=StepRecord)

    def add(self, part: Batch) -> None:
        """Note groups of the batch; a group that came twice would count twice."""
        for group in part.groups:
            if group.id in self.groups:
                raise UntrainableBatch(f"step {self.number}: group {group.id} was given to the trainer twice")
            self.groups[group.id] = group
