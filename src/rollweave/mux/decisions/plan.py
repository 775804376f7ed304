"""What the scheduler wants to happen: an ordered list of steps, each with its reason.

A plan is only a value. `apply.py` carries it out on a state; `invariants.py` says what must hold afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rollweave.mux.model.group import Mode

Kind = Literal["open", "place", "move", "leave", "reserve", "arrange", "retime", "resubmit", "wait"]
"""open: new group around a job · place: a job joins a group · move: a running job changes group and pauses for its
`move_s` · leave: a job is gone; nodes nobody is pinned to and groups nobody is in are given back · reserve: the same,
but its turn is kept (its timing only) until the group changes again · arrange: mode and order of a group · retime: the
planned phase times of a job change · resubmit: the caller stops the job and submits it again with the new profile (it
has left) · wait: no room in the pools, the caller tries again after a departure."""


@dataclass(frozen=True, slots=True)
class Step:
    kind: Kind
    job: str = ""
    group: int = 0
    why: str = ""
    nodes: tuple[int, ...] = ()
    """Rollout nodes of the job, new ones included."""
    new_nodes: tuple[int, ...] = ()
    """Those of them that are taken from the pool now."""
    train_nodes: tuple[int, ...] = ()
    """For `open`, and a `move` to nodes of its own: the train nodes of the new group."""
    mode: Mode = "rr"
    order: tuple[str, ...] = ()
    t_roll: float = 0.0
    t_train: float = 0.0


class Rejection(NamedTuple):
    """Why a group did not take a job; text only when somebody asks."""

    group: int
    reason: str
    """A format string over `left`, `right`, `job`."""
    left: float = 0.0
    right: float = 0.0
    job: str = ""

    def __str__(self) -> str:
        return f"group {self.group}: " + self.reason.format(left=self.left, right=self.right, job=self.job)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    """Of the placement in it, group by group in the order they were looked at."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps, self.rejections + other.rejections)

    @property
    def moves(self) -> int:
        """Jobs that have to pause for it."""
        return sum(step.kind == "move" for step in self.steps)

    def groups(self) -> set[int]:
        return {step.group for step in self.steps if step.group}

    def jobs(self) -> set[str]:
        return {step.job for step in self.steps if step.job}

    def explain(self) -> str:
        """The plan and what was refused on the way, one line each."""
        lines: Iterable[str] = [f"{step.kind} {step.job or f'group {step.group}'}: {step.why}" for step in self.steps]
        return "\n".join([*lines, *(f"  not {rejection}" for rejection in self.rejections)])
