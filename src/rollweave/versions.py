"""Version: the name of a state of the policy, by history and number.

The number counts completed train steps. A trainer that dies goes back to its checkpoint, and the steps since then are
made again, with other results: that begins a new history. `7 of history 1` is therefore another policy than 7, while a
version of an earlier history up to the checkpoint is a true predecessor of it.

Both are one integer, with the history above the number. So a version is written, sent, compared and used as a key like
any number; within a history versions are ordered by number, and every version of a later history is above all of the
earlier ones. In history 0, which most runs never leave, a version is its number. Engines, trainers and stores get the
integer and ask for no more; the control plane, and what writes a message, makes a `Version` of it.
"""

from __future__ import annotations

HISTORY = 1 << 40
"""A number is always below this."""


class Version(int):
    """Make one of any integer that names a version, or with `of`."""

    __slots__ = ()

    @classmethod
    def of(cls, history: int, number: int) -> Version:
        return cls(history * HISTORY + number)

    @property
    def history(self) -> int:
        """How often the trainer had gone back before."""
        return int(self) // HISTORY

    @property
    def number(self) -> int:
        """Completed train steps."""
        return int(self) % HISTORY

    def __str__(self) -> str:
        return f"{self.number} of history {self.history}" if self.history else str(self.number)


def marked(id: str, history: int) -> str:
    """The id of something that is made in each history anew: `17.3.0` is `17.3.0~1` in history 1."""
    return f"{id}~{history}" if history else id
