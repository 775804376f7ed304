"""The wait-for graph: who waits for whom and since when, from the trainer down to one call of one environment.

trainer waits for batch 7: 3 of 16 groups, 41 s
  group 7 waits for 1 of 8 members, 52 s
    episode 7.3.0 waits for environment step 12, 38 s

OpenWork: which groups are being played, which of their episodes, and which of their rewards are being computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

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
    scoring: dict[str, OpenReward] = field(default_factory=dict)
    """Episodes that have ended and wait for their reward."""


class OpenReward(NamedTuple):
    since: float
    names: tuple[str, ...]


class OpenWork:
    def __init__(self) -> None:
        self.groups: dict[int, WatchedGroup] = {}
        """Admitted and neither complete nor ended, oldest first."""
        self.playing: dict[str, int] = {}
        """Episode -> its group; evaluations too, under a group of their own."""
        self.scoring: dict[str, OpenReward] = {}
        """The same of episodes whose reward is being computed."""

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

    def begin_scoring(self, episode: str, group: int, names: Iterable[str], time: float) -> None:
        self.scoring[episode] = reward = OpenReward(time, tuple(names))
        if group in self.groups:
            self.groups[group].scoring[episode] = reward

    def end_scoring(self, episode: str) -> OpenReward | None:
        """The reward has come, or is not wanted any more."""
        group = episode.partition(".")[0]
        if group.isdigit() and int(group) in self.groups:
            self.groups[int(group)].scoring.pop(episode, None)
        return self.scoring.pop(episode, None)

    def end_all(self) -> list[str]:
        """The processes that played and scored are gone; returns what was being played."""
        for episode in list(self.scoring):
            self.end_scoring(episode)
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

SCORING = "scoring of "
"""How waits for a reward begin to say who waits."""


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
    of_hosts = (EPISODE, SCORING)
    inside = {
        wait.who.removeprefix(EPISODE).removeprefix(SCORING): wait for wait in waits if wait.who.startswith(of_hosts)
    }
    roots = [_root(wait, work, inside, now) for wait in waits if not wait.who.startswith(of_hosts)]
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
        rewards = {episode: reward for episode, reward in work.scoring.items() if episode.startswith("eval")}
        _explain(node, [_episode(episode, inside, None) for episode in episodes] + _rewards(rewards, inside, now))
    return node


def _blocking(what: str, work: OpenWork) -> list[WatchedGroup]:
    """The group the trainer names, else all that are not complete, oldest first."""
    named = re.match(r"group (\d+)", what)
    if named and int(named[1]) in work.groups:
        return [work.groups[int(named[1])]]
    return sorted(work.groups.values(), key=lambda group: (group.version, group.id))


def _group(group: WatchedGroup, inside: Mapping[str, Waiting], now: float) -> WaitNode:
    counted = [_count(len(group.playing), "episode"), _count(len(group.scoring), "reward")]
    what = " and ".join(filter(None, counted)) or "a free environment"
    node = WaitNode(f"group {group.id}", what, now - group.admitted)
    episodes = [_episode(episode, inside, now - began) for episode, began in group.playing.items()]
    _explain(node, episodes + _rewards(group.scoring, inside, now))
    return node


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}" if number else ""


def _rewards(scoring: Mapping[str, OpenReward], inside: Mapping[str, Waiting], now: float) -> list[WaitNode]:
    """By the host's own word, else since it was asked."""
    asked = {
        episode: Waiting("", f"reward {', '.join(reward.names)}".rstrip(), now - reward.since)
        for episode, reward in scoring.items()
    }
    waits = {episode: inside.get(episode, wait) for episode, wait in asked.items()}
    return [WaitNode(_member(episode), wait.what, wait.seconds) for episode, wait in waits.items()]


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
