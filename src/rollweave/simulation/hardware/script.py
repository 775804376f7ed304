"""Tokens of a scripted episode: how many there are, and how long the answer to them will be.

In a simulation the workload knows the whole episode: how long each observation is and how long each answer. The
environment says both in its observation, the dialogue turns them into `Script` tokens, the context that an
`EnvManager` collects carries them along, and the engine reads from its request how many tokens it will sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollweave.environments.protocol import Observation
from rollweave.repeated import Repeated

TOKEN = 0


class Script(Repeated[int]):
    """`size` tokens; the answer to them has `answer` tokens."""

    __slots__ = ("answer",)

    def __init__(self, size: int, answer: int) -> None:
        self.item = TOKEN
        self.size = size
        self.answer = answer

    def __iadd__(self, more: Any) -> Script:  # type: ignore[misc,override]
        self.size += len(more)
        if isinstance(more, Script):
            self.answer = more.answer
        return self

    def copy(self) -> Script:
        return Script(self.size, self.answer)


def observation(tokens: int, answer: int) -> str:
    """What a simulated environment shows."""
    return f"{tokens} {answer}"


class ScriptedDialogue:
    """Renders what `observation` wrote."""

    def open(self, observation: Observation) -> list[int]:
        assert isinstance(observation, str)
        tokens, answer = observation.split()
        return Script(int(tokens), int(answer))

    def reply(self, observation: Observation, answered_end: bool) -> list[int]:
        return self.open(observation)

    def ended(self, answer: Sequence[int]) -> bool:
        return True
