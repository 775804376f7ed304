"""Lets a policy play a `gymnasium.Env` in text, if its actions are text or discrete."""

from __future__ import annotations

import random
import re
from typing import Any

from rollweave.environments.protocol import StepResult
from rollweave.errors import ConfigError


class GymText:
    """A `gymnasium.Env` whose actions are given by number or label.

    An answer that is neither costs a turn and changes nothing.
    """

    def __init__(self, env: Any) -> None:
        from gymnasium import spaces

        self.env = env
        self.space = env.action_space
        if not isinstance(self.space, spaces.Discrete | spaces.Text):
            raise ConfigError(
                f"{env}: actions of kind {type(self.space).__name__} cannot be written as text; wrap it in a class "
                "with `reset` and `step(action: str)` that translates them"
            )
        self.discrete = isinstance(self.space, spaces.Discrete)
        self.labels = _labels(env)
        self._shown = ""

    def reset(self, seed: int) -> str:
        observation, _ = self.env.reset(seed=seed)  # without options: the environment does not know a task's data
        return self._show(observation)

    def step(self, action: str) -> StepResult:
        choice = self._parse(action) if self.discrete else action
        if choice is None:
            return StepResult(f"Not an action. Answer with one of: {self._choices()}.\n{self._shown}")
        observation, reward, terminated, truncated, info = self.env.step(choice)
        return StepResult(self._show(observation), reward, terminated, truncated, info)

    def close(self) -> None:
        self.env.close()

    def scripted_action(self, rng: random.Random) -> str:
        self.space.seed(rng.getrandbits(31))
        sample = self.space.sample()
        return self._name(int(sample)) if self.discrete else str(sample)

    def _parse(self, action: str) -> int | None:
        """The first word that is an action's number or label."""
        first = int(self.space.start)
        for word in re.findall(r"[\w-]+", action.casefold()):
            if word in self.labels:
                return first + self.labels.index(word)
            if re.fullmatch(r"-?\d+", word) and self.space.contains(int(word)):
                return int(word)
        return None

    def _name(self, action: int) -> str:
        return self.labels[action - int(self.space.start)] if self.labels else str(action)

    def _choices(self) -> str:
        first = int(self.space.start)
        return ", ".join(self._name(first + i) for i in range(int(self.space.n)))

    def _show(self, observation: Any) -> str:
        drawn = self.env.render() if self.env.render_mode == "ansi" else None
        self._shown = drawn if isinstance(drawn, str) else str(observation)
        return self._shown


def _labels(env: Any) -> list[str]:
    """The names of the actions, if the environment has any: `action_labels`, or Atari's meanings."""
    inner = env.unwrapped
    names = getattr(inner, "action_labels", None)
    if names is None and callable(getattr(inner, "get_action_meanings", None)):
        names = inner.get_action_meanings()
    return [str(name).casefold() for name in names or ()]
