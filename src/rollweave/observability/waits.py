"""The wait-for graph: who waits for whom and since when, from the trainer down to one call of one environment.

trainer waits for batch 7: 3 of 16 groups, 41 s
  group 7 waits for 1 of 8 members, 52 s
    episode 7.3.0 waits for environment step 12, 38 s

OpenWork: which groups are being played, and which of their episodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollweave.clock import Waiting
from rollweave.observability.meters import SlotMeter


@dataclass(slots=True)
class WatchedGroup:
    id: int
    version: int
    """The engine version it was admitted under."""
    admitted: float
    playing: dict[str, float] = field(default_factory=dict)
    """Episodes with a host, by when they began."""


class OpenWork:
    def __init__(self) -> None:
        self.groups: dict[int, WatchedGroup] = {}
        """Admitted and neither complete nor ended, oldest first."""
        self.playing: dict[str, int] = {}
        """Episode -> its group; evaluations too, under a group of their own."""

    def admit(self, group: int, version: int, time: float) -> None:
        self.groups[group] = WatchedGroup(group, version, time)

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


SHOWN = 3
"""Children of a node that are named; the others are counted."""

EPISODE = "episode "
"""How waits inside an episode begin to say who waits."""


@dataclass(slots=True)
class WaitNode:
    who: str
    what: str
    seconds: float | None
    because: list[WaitNode] = field(default_factory=list)
    more: int = 0
    """Further ones like those in `because`."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def wait_for_graph(waits: Iterable[Waiting], work: OpenWork, slots: SlotMeter, now: float) -> list[WaitNode]:
    """Roots are the waits of the driver, explained by what episodes wait for, and rollout itself if it is held back."""
    waits = list(waits)
    inside = {wait.who.removeprefix(EPISODE): wait for wait in waits if wait.who.startswith(EPISODE)}
    roots = [_root(wait, work, inside, now) for wait in waits if not wait.who.startswith(EPISODE)]
    if (refused := slots.refused_for(now)) > 0:
        what = f"the next version: {slots.free} of {slots.slots} slots are free, but the staleness bound admits no more"
        roots.append(WaitNode("rollout", what, refused))
    return roots


def _root(wait: Waiting, work: OpenWork, inside: Mapping[str, Waiting], now: float) -> WaitNode:
    node = WaitNode(wait.who, wait.what, wait.seconds)
    if wait.who == "trainer":
        groups = _blocking(wait.what, work)
        node.because = [_group(group, inside, now) for group in groups[:SHOWN]]
        node.more = max(0, len(groups) - SHOWN)
    elif "evaluation" in wait.what:
        episodes = [episode for episode, group in work.playing.items() if group not in work.groups]
        _explain(node, [_episode(episode, inside, None) for episode in episodes])
    return node


def _blocking(what: str, work: OpenWork) -> list[WatchedGroup]:
    """The group the trainer names, else all that are not complete, oldest first."""
    named = re.match(r"group (\d+)", what)
    if named and int(named[1]) in work.groups:
        return [work.groups[int(named[1])]]
    return sorted(work.groups.values(), key=lambda group: (group.version, group.id))


def _group(group: WatchedGroup, inside: Mapping[str, Waiting], now: float) -> WaitNode:
    playing = len(group.playing)
    what = f"{playing} episode{'s' if playing != 1 else ''}" if playing else "a free environment"
    node = WaitNode(f"group {group.id}", what, now - group.admitted)
    _explain(node, [_episode(episode, inside, now - began) for episode, began in group.playing.items()])
    return node


def _episode(episode: str, inside: Mapping[str, Waiting], playing: float | None) -> WaitNode:
    """What it waits for where that is known, else for how long it has been playing."""
    if wait := inside.get(episode):
        return WaitNode(_member(episode), wait.what, wait.seconds)
    return WaitNode(_member(episode), "its end", playing)


def _member(episode: str) -> str:
    """`7.3.0` is the first attempt of group 7's member 3; an evaluation keeps its name."""
    named = re.fullmatch(r"\d+\.(\d+)\.(\d+)", episode)
    if named is None:
        return f"{EPISODE}{episode}"
    member, attempt = named.groups()
    return f"member {member}" if attempt == "0" else f"member {member} (attempt {int(attempt) + 1})"


def _explain(node: WaitNode, children: list[WaitNode]) -> None:
    children.sort(key=lambda child: -(child.seconds or 0.0))
    node.because, node.more = children[:SHOWN], max(0, len(children) - SHOWN)
