"""EnvManager: plays one lease. Reset, then turn after turn, then the reward, then a report.

Whatever the environment does wrong ends here, as a typed outcome. An infrastructure failure is never a
reward: the trajectory is reported as failed and the scheduler issues a fresh attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollweave.clock import Clock, DeadlineExceeded
from rollweave.config.job import Deadlines
from rollweave.engines.protocol import Request
from rollweave.environments.protocol import Environment, Observation, StepResult
from rollweave.errors import EnvironmentFailed, RewardFailed
from rollweave.rollout.barrier import TurnBarrier
from rollweave.rollout.messages import Lease, Report
from rollweave.rollout.proxy import LLMProxy
from rollweave.seeds import derive
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Trajectory

T = TypeVar("T")


class Dialogue(Protocol):
    """Renders a conversation to tokens, only ever appending."""

    def open(self, observation: Observation) -> list[int]:
        """The tokens of the first observation, up to where the answer begins."""
        ...

    def reply(self, observation: Observation, answered_end: bool) -> list[int]:
        """The tokens to append after an answer: its end if it was cut short, the next observation."""
        ...

    def ended(self, answer: Sequence[int]) -> bool:
        """Whether a sampled answer closed its turn itself."""
        ...


class Scores(Protocol):
    async def score(self, trajectory: Trajectory) -> None:
        """Fill in `trajectory.rewards`. Raises RewardFailed."""
        ...


@dataclass(slots=True)
class Stage:
    """What a manager plays on: everything an episode needs, injected."""

    clock: Clock
    proxy: LLMProxy
    environment: Callable[[Task], Environment]
    """Makes a fresh environment for a task."""
    dialogue: Dialogue
    scorer: Scores
    deadlines: Deadlines
    max_turns: int
    max_context: int
    barrier: TurnBarrier | None = None


class EnvManager:
    def __init__(self, stage: Stage, lease: Lease) -> None:
        self.stage = stage
        self.lease = lease
        self.trajectory = Trajectory(lease.id, lease.group, lease.member, lease.task, admitted_version=lease.version)

    async def play(self) -> Report:
        reward_failed = False
        if self.stage.barrier:
            self.stage.barrier.join()
        try:
            await self._play_episode()
        except DeadlineExceeded as error:
            self._fail(Outcome.TIMED_OUT, error)
        except EnvironmentFailed as error:
            self._fail(Outcome.ENV_FAILED, error)
        finally:
            if self.stage.barrier:
                self.stage.barrier.leave()
            self.stage.proxy.release(self.lease.id)
        if self.trajectory.outcome and self.trajectory.outcome.trainable:
            reward_failed = not await self._score()
        return Report(self.lease.id, self.trajectory, reward_failed)

    def _fail(self, outcome: Outcome, error: Exception) -> None:
        self.trajectory.outcome = outcome
        self.trajectory.cause = str(error)

    async def _play_episode(self) -> None:
        environment = self.stage.environment(self.lease.task)
        try:
            observation = await self._in_time(
                environment.reset(self.lease.task.seed, self.lease.task.data), "reset", self.stage.deadlines.env_reset
            )
            self.trajectory.observe(self.stage.dialogue.open(observation))
            while (next_observation := await self._take_turn(environment)) is not None:
                self.trajectory.observe(next_observation)
        finally:
            await self._close(environment)

    async def _close(self, environment: Environment) -> None:
        """The episode is over: an environment that cannot be closed takes nothing away from it."""
        with suppress(DeadlineExceeded, EnvironmentFailed):
            await self._in_time(environment.close(), "close", self.stage.deadlines.env_reset)

    async def _take_turn(self, environment: Environment) -> list[int] | None:
        """Answer the open observation and act; the tokens of the next one, or None at the episode's end."""
        if self.trajectory.length >= self.stage.max_context:
            raise EnvironmentFailed(
                f"{self.lease.task.id}: the first observation alone has {self.trajectory.length} tokens; "
                f"rollout.max_context is {self.stage.max_context}: raise it or shorten the observation"
            )
        await self._generate()
        turn = self.trajectory.turns[-1]
        started = self.stage.clock.now()
        result = await self._in_time(
            environment.step(turn.text), f"step {len(self.trajectory.turns)}", self.stage.deadlines.env_step
        )
        turn.seconds["environment"] = self.stage.clock.now() - started
        turn.reward = result.reward
        return self._after(result)

    def _after(self, result: StepResult) -> list[int] | None:
        if result.done:
            self.trajectory.outcome = Outcome.TRUNCATED if result.truncated else Outcome.FINISHED
            return None
        dialogue, answer = self.stage.dialogue, self.trajectory.turns[-1].answer
        answered_end = dialogue.ended([token for span in answer for token in span.tokens])
        observation = dialogue.reply(result.observation, answered_end)
        out_of_turns = len(self.trajectory.turns) >= self.stage.max_turns
        out_of_context = self.trajectory.length + len(observation) >= self.stage.max_context
        if result.truncated or out_of_turns or out_of_context:
            self.trajectory.outcome = Outcome.TRUNCATED
            return None
        return observation

    async def _generate(self) -> None:
        """Sample the answer of the open turn."""
        stage, lease, turn = self.stage, self.lease, len(self.trajectory.turns)
        if stage.barrier:
            await stage.barrier.arrive()
        request = Request(
            id=f"{lease.id}#{turn}",
            trajectory=lease.id,
            tokens=self.trajectory.tokens(),
            seed=derive(lease.seed, turn),
            sampling=lease.sampling,
            tag=lease.task.environment,
        )
        started = stage.clock.now()
        try:
            with stage.clock.wait(f"episode {lease.id}", f"generation of turn {turn}", stage.deadlines.generate):
                completion = await stage.proxy.generate(request)
        except (DeadlineExceeded, asyncio.CancelledError):
            stage.proxy.abort(lease.id, request.id)
            raise
        self.trajectory.answer(completion.spans, completion.text, completion.finish)
        self.trajectory.turns[-1].seconds["generate"] = stage.clock.now() - started
        if stage.barrier:
            await stage.barrier.arrive()

    async def _in_time(self, call: Awaitable[T], what: str, timeout: float) -> T:
        with self.stage.clock.wait(f"episode {self.lease.id}", f"environment {what}", timeout):
            return await call

    async def _score(self) -> bool:
        """Whether the trajectory could be scored."""
        try:
            with self.stage.clock.wait(f"episode {self.lease.id}", "reward", self.stage.deadlines.reward):
                await self.stage.scorer.score(self.trajectory)
        except (RewardFailed, DeadlineExceeded) as error:
            self.trajectory.cause = str(error)
            return False
        return True
