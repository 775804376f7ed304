"""RollMux's job types (its table 3), with phase times that follow from its table 4 and figure 10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import JobProfile
from rollweave.mux.simulation.jobs import MODELS


class Type(NamedTuple):
    """A type of job: its phase times, its model and its nodes per pool."""

    t_roll: float
    t_train: float
    model: str
    nodes: int = 1

    def profile(self, nodes: int = 0) -> JobProfile:
        own = MODELS[self.model]
        return JobProfile(
            self.t_roll,
            self.t_train,
            nodes or self.nodes,
            nodes or self.nodes,
            switch_roll=own.switch_roll,
            switch_train=own.switch_train,
            cold_roll=own.cold_roll,
            cold_train=own.cold_train,
            move_s=own.move_s,
        )


TYPES = {
    "A": Type(156, 102, "7B"),
    "B": Type(238, 134, "14B"),
    "C": Type(255, 369, "32B", nodes=2),
    "D": Type(375, 150, "7B"),
    "E": Type(450, 75, "14B"),
}
"""A from 257.7 s an iteration and 311 s for two without migration; B from the pairs of the migration study; D and E
from 525.4 s and their ratios of rollout to training; C is a guess."""


def group(members: Sequence[tuple[str, Type, tuple[int, ...]]], width: int) -> CoGroup:
    """Make a co-group of these jobs, each given by name, type and rollout nodes."""
    made = CoGroup(1, tuple(range(width)))
    for name, kind, nodes in members:
        made.add(name, phases_at(kind.profile(), width), nodes)
    return made
