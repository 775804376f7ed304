"""Single-turn prompts: the row's prompt is the observation, one answer ends the episode, a reward scores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rollweave.environments.protocol import Observation, StepResult


@dataclass(eq=False)
class Prompts:
    """Shows the prompt of the task's row. Its own reward is 0; reward functions read `trajectory.task.data`."""

    deterministic: ClassVar[bool] = True
    column: str = "prompt"

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        prompt: Observation = data[self.column]
        return prompt

    async def step(self, action: str) -> StepResult:
        return StepResult("", done=True)

    async def close(self) -> None:
        pass  # there is nothing to close
