"""GroupFilter: groups that teach nothing are replaced, and how many survive tells how many more to start.

If all members of a group got the same reward, every advantage is zero and so is the gradient. Waiting for a
replacement only after such a group has ended would be serial; the scheduler starts as many groups at once as are
needed for enough of them to survive.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from rollweave.trajectory import Group

REMEMBERED = 64
"""Groups the share of survivors is estimated from: enough to be steady, few enough to follow the policy."""


class GroupFilter:
    def __init__(self, kind: Literal["none", "zero_variance"]) -> None:
        self.kind = kind
        self.kept_lately: deque[bool] = deque(maxlen=REMEMBERED)

    def keeps(self, group: Group) -> bool:
        """Whether the group is worth a place in a batch."""
        if self.kind == "none":
            return True
        kept = len({member.reward for member in group.members}) > 1
        self.kept_lately.append(kept)
        return kept

    @property
    def survivors(self) -> float:
        """The share of groups expected to be kept; 1 until something is known, never 0."""
        return (1 + sum(self.kept_lately)) / (1 + len(self.kept_lately))
