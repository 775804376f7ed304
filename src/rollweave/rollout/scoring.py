"""Scoring: which trajectories wait for a reward, and which host computes it.

    host reports an episode ─▶ its slot is free ─▶ `score`
    host computes its reward ─▶ Scored ─────────▶ `done`

The host that played computes: the tokens of a long trajectory lie there. If that host is gone, the trajectory is sent
to another one (`Score`): rewards are pure. The deadline is kept by the host, as those of an episode are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollweave.observability.events import Emitter
from rollweave.rewards.dispatch import NOT_WANTED, RewardBackend, Scored
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Cancel, Score
from rollweave.trajectory import Trajectory

OnScored = Callable[[Trajectory, bool], None]
"""Takes the trajectory, and whether it has its rewards; if not, its `cause` says why."""


@dataclass(slots=True)
class Scoring:
    """Every trajectory given to `score` is answered exactly once, with rewards or as failed, unless it is forgotten."""

    backend: RewardBackend
    recorder: Emitter
    _waiting: dict[str, tuple[Trajectory, OnScored]] = field(default_factory=dict)

    def score(self, trajectory: Trajectory, holder: int | None, names: Sequence[str], done: OnScored) -> None:
        """`holder`: the host that has it, if one does. `names` of the rewards, as far as they are known."""
        self._waiting[trajectory.id] = (trajectory, done)
        self.recorder.emit("reward.begin", id=trajectory.id, group=trajectory.group, rewards=list(names), host=holder)
        self.backend.call(trajectory, holder, self._hear)

    def forget(self, attempt: str) -> None:
        """Nothing waits for this reward any more; a late answer is ignored."""
        del self._waiting[attempt]
        self.backend.give_up(attempt)

    def _hear(self, answer: Scored) -> None:
        waiting = self._waiting.pop(answer.attempt, None)
        if waiting is None:
            _tell_late(self.recorder, answer)
            return
        (trajectory, done), succeeded = waiting, answer.failure is None
        answer.fill_in(trajectory)
        self.recorder.emit(
            "reward.end",
            id=answer.attempt,
            reward=trajectory.reward if succeeded else None,
            cause=answer.failure,
            threads_left=answer.threads_left,
            **_calls(answer),
        )
        done(trajectory, succeeded)


def _tell_late(recorder: Emitter, answer: Scored) -> None:
    recorder.emit("reward.late", id=answer.attempt, threads_left=answer.threads_left, **_calls(answer))


def _calls(answer: Scored) -> dict[str, Any]:
    """What functions elsewhere took, if any were called."""
    return {"calls": answer.calls} if answer.calls else {}


@dataclass(slots=True)
class _Call:
    trajectory: Trajectory
    holder: int | None
    done: Callable[[Scored], None]
    host: int | None = None
    """Where it is computed; None: there is no host."""
    name: str = ""
    """What the host there knows it by."""
    tries: int = 0


class HostBackend:
    """Hosts compute the rewards of what they played. What a dead host was computing, another one computes, a limited
    number of times: a reward may be what kills them."""

    def __init__(self, dispatcher: Dispatcher, recorder: Emitter, max_retries: int) -> None:
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._max_retries = max_retries
        self._calls: dict[str, _Call] = {}
        self._asked = itertools.count()
        dispatcher.on_scored, dispatcher.on_hosts = self._hear, self._hosts_changed

    def call(self, trajectory: Trajectory, holder: int | None, done: Callable[[Scored], None]) -> None:
        made = self._calls[trajectory.id] = _Call(trajectory, holder, done)
        self._place(made)

    def give_up(self, attempt: str) -> None:
        made = self._calls.pop(attempt)
        if made.host is not None:
            self._dispatcher.say(made.host, f"cancel.{made.name}", Cancel(made.name))

    def _hear(self, answer: Scored) -> None:
        """From any host, also one that was taken for dead: the answer is the same."""
        made = self._calls.pop(answer.attempt, None) if answer.failure != NOT_WANTED else None
        if made is not None:
            made.done(answer)
        else:
            _tell_late(self._recorder, answer)

    def _hosts_changed(self) -> None:
        """What no living host computes is placed again."""
        hosts = set(self._dispatcher.hosts)
        for made in [made for made in self._calls.values() if made.host not in hosts]:
            if made.host is not None and made.tries > self._max_retries:
                cause = f"its host died while it was scored, {made.tries} times"
                self._hear(Scored(made.trajectory.id, failure=cause))
            else:
                self._place(made)

    def _place(self, made: _Call) -> None:
        """The holder has begun by itself. Without one: with the host that computes least, or the next that comes."""
        attempt, hosts = made.trajectory.id, self._dispatcher.hosts
        held = made.holder in hosts
        made.host = made.holder if held else self._least_busy(hosts)
        if made.host is None:
            return
        made.tries += 1
        if made.tries > 1:
            self._recorder.emit("reward.again", id=attempt, host=made.host, tries=made.tries)
        made.name = attempt if held else f"{attempt}/{next(self._asked)}"
        if not held:
            self._dispatcher.say(made.host, f"score.{made.name}", Score(made.trajectory, made.name))

    def _least_busy(self, hosts: Sequence[int]) -> int | None:
        load = Counter(made.host for made in self._calls.values())
        return min(hosts, key=lambda host: load[host], default=None)
