"""The protocol through which the driver asks for rewards, and the answer that comes back.

`rollout/scoring.py` decides which trajectories wait for a reward and asks a `RewardBackend`. A real run has one today,
`HostBackend`: a host computes the reward, or calls the function that does (`rewards/remote.py`), because the trajectory
lies there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollweave.rewards.scorer import CALLS, PARTS, THREADS_LEFT
from rollweave.trajectory import Trajectory

NOT_WANTED = "not wanted any more"
"""The failure of a call that was given up. It is said only if threads are left, and is no answer to a later call."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a call, small enough for any wire: rewards, but no tokens."""

    attempt: str
    rewards: dict[str, float] = field(default_factory=dict)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    failure: str | None = None
    """Why there is no reward, and will be none."""
    threads_left: int = 0
    """Plain functions that were given up and still run in their threads."""
    calls: dict[str, Any] = field(default_factory=dict)
    """By reward: what the calls of functions elsewhere took (`CallReport`)."""

    @classmethod
    def of(cls, trajectory: Trajectory, failure: str | None = None) -> Scored:
        """What a scorer made of this trajectory."""
        beside = {"threads_left": trajectory.info.pop(THREADS_LEFT, 0), "calls": trajectory.info.pop(CALLS, {})}
        if failure is not None:
            return cls(trajectory.id, failure=failure, **beside)
        return cls(trajectory.id, trajectory.rewards, trajectory.info.get(PARTS, {}), **beside)

    def fill_in(self, trajectory: Trajectory) -> None:
        """Write the answer into the trajectory it belongs to."""
        if self.failure is not None:
            trajectory.cause = self.failure
            return
        trajectory.rewards = self.rewards
        if self.parts:
            trajectory.info[PARTS] = self.parts


class RewardBackend(Protocol):
    def call(self, trajectory: Trajectory, holder: int | None, done: Callable[[Scored], None]) -> None:
        """Compute the rewards of a trajectory and say them to `done`, within the job's deadline; late or repeated
        answers do no harm. `holder`: the host that has the trajectory, so that it need not be sent; None: no host."""

    def give_up(self, attempt: str) -> None:
        """The answer is no longer wanted."""
