"""OpenWork: which groups are being played, and which of their episodes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class OpenGroup:
    id: int
    version: int
    """The engine version it was admitted under."""
    admitted: float
    playing: dict[str, float] = field(default_factory=dict)
    """Episodes with a host, by when they began."""


class OpenWork:
    def __init__(self) -> None:
        self.groups: dict[int, OpenGroup] = {}
        """Admitted and neither complete nor ended, oldest first."""
        self.playing: dict[str, int] = {}
        """Episode -> its group; evaluations too, under a group of their own."""

    def admit(self, group: int, version: int, time: float) -> None:
        self.groups[group] = OpenGroup(group, version, time)

    def begin(self, episode: str, group: int, time: float) -> None:
        self.playing[episode] = group
        if group in self.groups:
            self.groups[group].playing[episode] = time

    def end(self, episode: str) -> None:
        group = self.playing.pop(episode, None)
        if group is not None and group in self.groups:
            self.groups[group].playing.pop(episode, None)

    def end_all(self) -> list[str]:
        """Whoever played is gone; returns what was being played."""
        episodes = list(self.playing)
        for episode in episodes:
            self.end(episode)
        return episodes

    def close(self, group: int) -> None:
        self.groups.pop(group, None)
