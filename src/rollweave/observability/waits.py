"""The wait-for graph: who waits for whom and since when, from the trainer down to one call of one environment.

trainer waits for batch 7: 3 of 16 groups, 41 s
  group 7 waits for 1 of 8 members, 52 s
    episode 7.3.0 waits for environment step 12, 38 s
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rollweave.clock import Waiting
from rollweave.observability.meters import SlotMeter


class WatchedGroup(NamedTuple):
    id: int
    version: int
    """The engine version it was admitted under."""
    since: float


class OpenEpisode(NamedTuple):
    group: int
    since: float


class OpenReward(NamedTuple):
    group: int
    since: float
    names: tuple[str, ...]


@dataclass(slots=True)
class OpenWork:
    """Which groups are being played, which episodes, and which rewards are being computed."""

    groups: dict[int, WatchedGroup] = field(default_factory=dict)
    """Admitted and neither complete nor ended, oldest first."""
    playing: dict[str, OpenEpisode] = field(default_factory=dict)
    """Episodes with a host, by id; evaluations too, under a group of their own."""
    scoring: dict[str, OpenReward] = field(default_factory=dict)
    """Episodes that have ended and wait for their reward."""


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
    seconds: float
    because: list[WaitNode] = field(default_factory=list)
    more: int = 0
    """Further ones like those in `because`."""


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
        node.because = [_group(group, work, inside, now) for group in groups[:SHOWN]]
        node.more = max(0, len(groups) - SHOWN)
    elif "evaluation" in wait.what:
        playing = {id: one for id, one in work.playing.items() if one.group not in work.groups}
        scoring = {id: one for id, one in work.scoring.items() if id.startswith("eval")}
        _explain(node, playing, scoring, inside, now)
    return node


def _blocking(what: str, work: OpenWork) -> list[WatchedGroup]:
    """The group the trainer names, else all that are not complete, oldest first."""
    named = re.match(r"group (\d+)", what)
    if named and int(named[1]) in work.groups:
        return [work.groups[int(named[1])]]
    return sorted(work.groups.values(), key=lambda group: (group.version, group.id))


def _group(group: WatchedGroup, work: OpenWork, inside: Mapping[str, Waiting], now: float) -> WaitNode:
    playing = {id: one for id, one in work.playing.items() if one.group == group.id}
    scoring = {id: one for id, one in work.scoring.items() if one.group == group.id}
    counted = [_count(len(playing), "episode"), _count(len(scoring), "reward")]
    node = WaitNode(f"group {group.id}", " and ".join(filter(None, counted)) or "a free environment", now - group.since)
    _explain(node, playing, scoring, inside, now)
    return node


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}" if number else ""


def _explain(
    node: WaitNode,
    playing: Mapping[str, OpenEpisode],
    scoring: Mapping[str, OpenReward],
    inside: Mapping[str, Waiting],
    now: float,
) -> None:
    """Add the episodes and rewards that the node waits for: what their hosts say, else what the driver knows."""
    known = [Waiting(id, "its end", now - one.since) for id, one in playing.items()]
    known += [Waiting(id, f"reward {', '.join(one.names)}".rstrip(), now - one.since) for id, one in scoring.items()]
    waits = [(wait.who, inside.get(wait.who, wait)) for wait in known]
    children = [WaitNode(_member(id), wait.what, wait.seconds) for id, wait in waits]
    children.sort(key=lambda child: -child.seconds)
    node.because, node.more = children[:SHOWN], max(0, len(children) - SHOWN)


def _member(episode: str) -> str:
    """`7.3.0` is the first attempt of group 7's member 3; an evaluation keeps its name."""
    named = re.fullmatch(r"\d+\.(\d+)\.(\d+)", episode)
    if named is None:
        return f"{EPISODE}{episode}"
    member, attempt = named.groups()
    return f"member {member}" if attempt == "0" else f"member {member} (attempt {int(attempt) + 1})"
