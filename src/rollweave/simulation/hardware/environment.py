"""Environments that play what the workload wrote, the tokens of their episodes, and the rule that scores them.

In a simulation the workload knows the whole episode: how long each observation is and how long each answer. Every
episode has a number, and all its tokens have that number as their id: the environment shows the number, the dialogue
repeats it (in an array that owns no memory), and the engine reads it from its request and asks the `Scripts` for the
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollweave.clock import Clock
from rollweave.config.cluster import GENERATES
from rollweave.config.hardware import HostTimes
from rollweave.config.scenario import Scenario
from rollweave.engines.protocol import Request
from rollweave.environments.protocol import Observation, StepResult
from rollweave.errors import EnvironmentFailed
from rollweave.simulation.costs.measured import contention, measured
from rollweave.simulation.hardware.judge import Judge
from rollweave.simulation.workloads.episode import NEVER, EpisodeScript, Workload
from rollweave.tasks import Task
from rollweave.trajectory import ENDLESS, TokenIds, Trajectory, repeat_item


class OpenScript:
    """An episode that is being played: its tokens, and how many of them come next."""

    __slots__ = ("answer", "name", "observation", "tokens")

    def __init__(self, number: int) -> None:
        self.name = str(number)
        self.tokens = repeat_item(np.array([number], np.int32), ENDLESS)
        self.observation = self.answer = 0

    def show(self, observation: int, answer: int) -> str:
        """What the environment says: so many tokens, to which the answer will have `answer`."""
        self.observation, self.answer = observation, answer
        return self.name


class Scripts:
    """The episodes that are being played, by number; as a dialogue it renders what their environments show."""

    def __init__(self) -> None:
        self._begun = 0
        self._open: dict[str | int, OpenScript] = {}
        """By number, as it is and as a name."""

    def begin(self) -> OpenScript:
        self._begun = number = self._begun + 1
        script = self._open[number] = OpenScript(number)
        self._open[script.name] = script
        return script

    def end(self, script: OpenScript) -> None:
        del self._open[script.name], self._open[int(script.name)]

    def open(self, observation: Observation) -> TokenIds:
        assert isinstance(observation, str)
        script = self._open[observation]
        return script.tokens[: script.observation]

    def reply(self, observation: Observation, answered_end: bool) -> TokenIds:
        return self.open(observation)

    def ended(self, answer: TokenIds) -> bool:
        return True

    def answer(self, request: Request) -> TokenIds:
        """The whole answer, if nothing cuts it short."""
        script = self._open[request.tokens.item(-1)]
        return script.tokens[: script.answer]


class WorkloadEnvironment:
    """An episode of the workload; where the host's line was measured, its answers pass through it."""

    def __init__(self, episode: EpisodeScript, clock: Clock, scripts: Scripts, line: HostLine | None) -> None:
        self._episode = episode
        self._clock = clock
        self._scripts = scripts
        self._line = line
        self._script = scripts.begin()
        self._turn = 0

    async def reset(self, seed: int, data: Mapping[str, Any]) -> Observation:
        await self._clock.sleep(0)  # even a reset in no time lets the others of the batch begin
        await self._take(self._episode.reset_seconds, -1)
        if self._line is not None:
            await self._line.pass_on()
        return self._script.show(self._episode.observations[0], self._episode.answers[0])

    async def step(self, action: str) -> StepResult:
        episode, turn = self._episode, self._turn
        seconds = episode.step_seconds[turn]
        if 0 < seconds < NEVER and turn != episode.failing_step:
            await self._clock.sleep(seconds)
        else:
            await self._take(seconds, turn)
        if self._line is not None:
            await self._line.pass_on()
        self._turn = turn = turn + 1
        if turn == len(episode.answers):
            return StepResult("", episode.reward, done=True)
        return StepResult(self._script.show(episode.observations[turn], episode.answers[turn]))

    async def close(self) -> None:
        self._scripts.end(self._script)

    async def _take(self, seconds: float, call: int) -> None:
        if seconds == NEVER:
            await asyncio.get_running_loop().create_future()
        if seconds > 0:
            await self._clock.sleep(seconds)
        if call == self._episode.failing_step:
            raise EnvironmentFailed("injected failure")


class WorkloadRewards:
    """The environment's reward, after the time that a rule or the judge takes for it."""

    def __init__(self, workload: Workload, judge: Judge | None, clock: Clock) -> None:
        self._workload = workload
        self._judge = judge
        self._clock = clock

    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        if self._judge is not None and self._workload.judged(trajectory.task):
            return ("judge",)
        return ("rule",) if self._workload.reward_seconds(trajectory) > 0 else ()

    async def score(self, trajectory: Trajectory) -> None:
        if self._judge is not None and self._workload.judged(trajectory.task):
            await self._judge.score(trajectory)
        else:
            seconds = self._workload.reward_seconds(trajectory)
            if seconds > 0:
                await self._clock.sleep(seconds)
        trajectory.rewards = {"environment": sum(turn.reward for turn in trajectory.turns)}


def environments(
    scenario: Scenario, workload: Workload, clock: Clock, scripts: Scripts
) -> Callable[[Task], WorkloadEnvironment]:
    """Makes the environments of a scenario, behind the host's line where one was measured."""
    pool = next(pool for pool in scenario.cluster.pools if pool.role in GENERATES)
    found = measured(scenario, pool)
    line = HostLine(found.host, contention(scenario, pool).host, clock) if found else None
    return lambda task: WorkloadEnvironment(workload.episode(task), clock, scripts, line)


class HostLine:
    """The time that hosts, links and driver take for a turn, where it was measured.

    On one machine all of it runs on the loop of one process. It takes the turns that have come up at one moment as one
    batch, because the answers of an engine step travel together, and so do the requests that they lead to; the turns
    that come up meanwhile are the next batch.
    """

    def __init__(self, times: HostTimes, slower: float, clock: Clock) -> None:
        self._message = times.message * slower
        self._turn = times.turn * slower
        self._clock = clock
        self._began = 0.0
        self._batch: list[asyncio.Future[None]] = []
        self._next: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def pass_on(self) -> None:
        """One turn, with all the others of its batch."""
        place: asyncio.Future[None] = self._clock.loop.create_future()
        if self._batch and self._clock.now() > self._began:
            self._next.append(place)
        else:
            self._begin([*self._batch, place])
        await place

    def _begin(self, batch: list[asyncio.Future[None]]) -> None:
        self._batch, self._began = batch, self._clock.now()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.loop.call_at(self._began + self._message + self._turn * len(batch), self._end)

    def _end(self) -> None:
        done, self._batch, self._timer = self._batch, [], None
        for place in done:
            if not place.done():  # the waiting task may have been cancelled
                place.set_result(None)
        if self._next:
            waiting, self._next = self._next, []
            self._begin(waiting)
