"""EnvManager: plays one lease. Reset, then turn after turn, then a report; rewards that take time come later.

Every mistake of an environment ends here, as a typed outcome. An infrastructure failure is never a reward: the
trajectory is reported as failed and the scheduler issues a fresh attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from rollweave.clock import Clock, DeadlineExceeded
from rollweave.config.control import RolloutConfig
from rollweave.engines.protocol import Completion, Request
from rollweave.environments.protocol import Environment, Observation, StepResult
from rollweave.errors import EnvironmentFailed, RewardFailed, RollweaveError
from rollweave.fleet.proxy import LLMProxy
from rollweave.fleet.router import RouteAsk
from rollweave.rewards.dispatch import Scored
from rollweave.rollout.link import Lease, Moved, Report
from rollweave.seeds import derive
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, TokenBuffer, TokenIds, Trajectory


class TurnBarrier:
    """Lets no environment take turn t + 1 before all have taken turn t.

    Only `sync` uses it, as the baseline that trajectory-level asynchrony is measured against. Members come and go. One
    that is cancelled while it waits counts neither as a member nor as arrived.
    """

    def __init__(self) -> None:
        self._members = 0
        self._arrived = 0
        self._opens = asyncio.Event()

    def join(self) -> None:
        self._members += 1

    def leave(self) -> None:
        self._members -= 1
        self._open_if_complete()

    async def arrive(self) -> None:
        """Wait until every member has arrived."""
        self._arrived += 1
        opens = self._opens
        self._open_if_complete()
        try:
            await opens.wait()
        except asyncio.CancelledError:
            if not opens.is_set():  # opening has counted it out already
                self._arrived -= 1
            raise

    def _open_if_complete(self) -> None:
        if self._members and self._arrived >= self._members:
            self._arrived = 0
            self._opens.set()
            self._opens = asyncio.Event()


class Dialogue(Protocol):
    """Renders a conversation to tokens, only ever appending."""

    def open(self, observation: Observation) -> TokenIds:
        """The tokens of the first observation, up to where the answer begins."""

    def reply(self, observation: Observation, answered_end: bool) -> TokenIds:
        """The tokens to append after an answer: its end if it was cut short, the next observation."""

    def ended(self, answer: TokenIds) -> bool:
        """Whether a sampled answer (or its last span) closed its turn itself."""


class Scores(Protocol):
    def awaited(self, trajectory: Trajectory) -> tuple[str, ...]:
        """The rewards that take time to compute. Without any, `score` does not wait for anything."""

    async def score(self, trajectory: Trajectory) -> None:
        """Fill in `trajectory.rewards`. Raises RewardFailed."""


@dataclass(slots=True)
class Stage:
    """What a manager plays on: everything an episode needs, injected."""

    clock: Clock
    proxy: LLMProxy
    environment: Callable[[Task], Environment]
    """Makes a fresh environment for a task."""
    dialogue: Dialogue
    scorer: Scores
    rollout: RolloutConfig
    """Limits and deadlines, and whether the members of a group share an engine."""
    barrier: TurnBarrier | None = None
    turn_limits: Mapping[str, int] = field(default_factory=dict)
    """By task, where it is not `rollout.max_turns`."""


class EpisodeCancelled(RollweaveError):
    """The driver no longer wants this episode."""


class EnvManager:
    def __init__(self, stage: Stage, lease: Lease) -> None:
        self.stage = stage
        self.lease = lease
        self.trajectory = Trajectory(lease.id, lease.group, lease.member, lease.task, admitted_version=lease.version)
        self.name = f"episode {lease.id}"
        self.cancelled = False
        self.moved: Moved | None = None
        """Where the host's proxy has routed it since it was leased."""
        self._context = TokenBuffer()
        """The trajectory's tokens, kept as they come: joining its spans anew every turn is quadratic in turns."""
        # One wait of each kind, entered again each turn. None of them holds on to the manager: a cycle of objects would
        # keep the whole episode in memory until the collector comes by.
        deadlines = stage.rollout.deadlines
        self._generation = stage.clock.wait(self.name, "", deadlines.generate, partial(stage.proxy.abort, lease.id))
        self._step = stage.clock.wait(self.name, "", deadlines.env_step)
        self._interruptible = [self._generation]
        if stage.barrier:  # before any of the leases that came together begins: the first must not pass alone
            stage.barrier.join()

    async def play(self) -> Report:
        """The report of how it ended. Its rewards are in it if they take no time, and in the barrier mode `sync`."""
        reward_failed, awaited = False, tuple[str, ...]()
        group = None if self.stage.rollout.prompt_replication else self.lease.group
        ask = RouteAsk(self.lease.id, self.lease.task.environment, group)
        self.stage.proxy.begin(ask, self.lease.engine, self.lease.prefill)
        try:
            await self._play_episode()
        except (EpisodeCancelled, DeadlineExceeded, EnvironmentFailed) as error:
            self._fail(error)
        finally:
            self.stage.proxy.release(self.lease.id)
        if self.trajectory.outcome and self.trajectory.outcome.trainable:
            awaited = () if self.stage.barrier else self.stage.scorer.awaited(self.trajectory)
            if not awaited:
                scored = await score(self.stage, self.trajectory, self.name)
                scored.fill_in(self.trajectory)
                reward_failed = scored.failure is not None
        return Report(self.lease.id, self.trajectory, reward_failed, awaited=awaited)

    def cancel(self) -> None:
        """Stop as soon as that does no harm: generation at once, an environment in another process after its call.

        Interrupting the latter would mean killing the process, with the other environments in it.
        """
        self.cancelled = True
        for wait in self._interruptible:
            if wait.open and not wait.expired:
                wait.expire()

    def _fail(self, error: RollweaveError) -> None:
        self.trajectory.cause = str(error)
        if self.cancelled:  # whatever happened on its way out
            self.trajectory.outcome = Outcome.ABORTED
            self.trajectory.cause = f"cancelled in turn {len(self.trajectory.turns)}"
        elif isinstance(error, DeadlineExceeded):
            self.trajectory.outcome = Outcome.TIMED_OUT
        else:
            self.trajectory.outcome = Outcome.ENV_FAILED

    def _stop_if_cancelled(self) -> None:
        if self.cancelled:
            raise EpisodeCancelled

    # ------------------------------------------------------------------------------------------------- the turns

    async def _play_episode(self) -> None:
        environment = None
        try:
            self._stop_if_cancelled()
            environment = self.stage.environment(self.lease.task)
            await self._converse(environment)
        finally:
            if self.stage.barrier:
                self.stage.barrier.leave()
            if environment is not None:
                await self._close(environment)

    async def _converse(self, environment: Environment) -> None:
        reset = self.stage.clock.wait(self.name, "environment reset", self.stage.rollout.deadlines.env_reset)
        if getattr(environment, "interruptible", True):
            self._interruptible += [reset, self._step]
        with reset:
            observation = await environment.reset(self.lease.task.seed, self.lease.task.data)
        self._stop_if_cancelled()
        self._observe(self.stage.dialogue.open(observation))
        while (next_observation := await self._take_turn(environment)) is not None:
            self._observe(next_observation)

    async def _close(self, environment: Environment) -> None:
        """The episode is over: an environment that cannot be closed takes nothing away from it."""
        with (
            suppress(DeadlineExceeded, EnvironmentFailed),
            self.stage.clock.wait(self.name, "environment close", self.stage.rollout.deadlines.env_reset),
        ):
            await environment.close()

    async def _take_turn(self, environment: Environment) -> TokenIds | None:
        """Answer the open observation and act; the tokens of the next one, or None at the episode's end."""
        if len(self._context) >= self.stage.rollout.max_context:
            raise EnvironmentFailed(
                f"{self.lease.task.id}: the first observation alone has {len(self._context)} tokens; "
                f"rollout.max_context is {self.stage.rollout.max_context}: raise it or shorten the observation"
            )
        await self._generate()
        turn = self.trajectory.turns[-1]
        wait = self._step
        wait.what = f"environment step {len(self.trajectory.turns)}"
        with wait:
            result = await environment.step(turn.text)
        turn.environment_seconds = self.stage.clock.now() - wait.since
        turn.reward = result.reward
        self._stop_if_cancelled()
        return self._after(result)

    def _after(self, result: StepResult) -> TokenIds | None:
        if result.done:
            self.trajectory.outcome = Outcome.TRUNCATED if result.truncated else Outcome.FINISHED
            return None
        dialogue, answer = self.stage.dialogue, self.trajectory.turns[-1].answer
        answered_end = bool(answer) and dialogue.ended(answer[-1].tokens)
        observation = dialogue.reply(result.observation, answered_end)
        limit = self.stage.turn_limits.get(self.lease.task.environment, self.stage.rollout.max_turns)
        out_of_turns = len(self.trajectory.turns) >= limit
        out_of_context = len(self._context) + len(observation) >= self.stage.rollout.max_context
        if result.truncated or out_of_turns or out_of_context:
            self.trajectory.outcome = Outcome.TRUNCATED
            return None
        return observation

    async def _generate(self) -> None:
        """Sample the answer of the open turn. What was sampled counts, even if it came too late."""
        stage, lease, turn = self.stage, self.lease, len(self.trajectory.turns)
        if stage.barrier:
            await self._meet(stage.barrier)
        seed = derive(lease.seed, turn)
        request = Request(
            f"{lease.id}#{turn}", lease.id, self._context.view(), seed, lease.sampling, lease.task.environment
        )
        wait = self._generation
        wait.what = f"generation of turn {turn}"
        try:
            with wait:
                completion = await stage.proxy.generate(request)
        except (DeadlineExceeded, asyncio.CancelledError):
            stage.proxy.abort(lease.id)
            raise
        self._answer(completion, stage.clock.now() - wait.since)
        self._stop_if_cancelled()
        if completion.finish == "aborted":
            raise wait.too_late() if wait.expired else EnvironmentFailed(f"the engine gave up turn {turn}")
        if stage.barrier:
            await self._meet(stage.barrier)

    def _observe(self, tokens: TokenIds) -> None:
        self.trajectory.observe(tokens)
        self._context.extend(tokens)

    def _answer(self, completion: Completion, seconds: float) -> None:
        self.trajectory.answer(completion.spans, completion.text, completion.finish)
        self.trajectory.turns[-1].generate_seconds = seconds
        for span in completion.spans:
            self._context.extend(span.tokens)

    # ------------------------------------------------------------------------------------------------- the waits

    async def _meet(self, barrier: TurnBarrier) -> None:
        """Wait for the others; the slowest of them has its own deadlines, and the batch has this one."""
        wait = self.stage.clock.wait(self.name, "the other environments", self.stage.rollout.deadlines.get_batch)
        self._interruptible.append(wait)
        with wait:
            await barrier.arrive()
        self._interruptible.remove(wait)
        self._stop_if_cancelled()


async def score(stage: Stage, trajectory: Trajectory, who: str) -> Scored:
    """Compute the rewards of an ended episode, within their deadline."""
    names = ", ".join(stage.scorer.awaited(trajectory))
    try:
        with stage.clock.wait(who, f"reward {names}".rstrip(), stage.rollout.deadlines.reward):
            await stage.scorer.score(trajectory)
    except (RewardFailed, DeadlineExceeded) as error:
        return Scored.of(trajectory, failure=str(error))
    return Scored.of(trajectory)
