"""Checks an environment before training: does it work, how long are its episodes, can anything be learned?

There are two players: *random* answers with arbitrary text, also with garbage; *scripted* answers with the
environment's own random legal actions, if it offers them. The environment runs in a process of its own, so that a hang
or a crash becomes a finding and does not end the check. `summarise` turns the episodes into figures for the user.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollweave.environments.protocol import HasScriptedAction, MakeEnvironment, Observation
from rollweave.errors import ConfigError, EnvironmentFailed, RollweaveError
from rollweave.rewards.scorer import Scorer
from rollweave.seeds import derive, generator
from rollweave.tasks import Task, TaskSource
from rollweave.trajectory import Outcome, Trajectory, token_ids

T = TypeVar("T")

SEARCH_FACTOR = 50
"""Up to so many times more episodes are played while all rewards are equal, because a reward may just be rare."""
SEARCH_SECONDS = 20.0
"""The longest time spent on those extra episodes."""


@dataclass(slots=True)
class PlayedEpisode:
    """One episode that the check played, with the times it took."""

    player: str
    trajectory: Trajectory
    observations: list[int] = field(default_factory=list)
    """Number of characters of each observation."""
    reset_seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)

    @property
    def reward(self) -> float:
        return self.trajectory.reward


@dataclass(slots=True)
class CheckReport:
    played: list[PlayedEpisode] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why the environment is refused, each with its fix."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class EnvironmentCheck:
    """Plays episodes in an environment and collects what is wrong with it."""

    make: MakeEnvironment
    source: TaskSource
    scorer: Scorer
    episodes: int = 20
    max_turns: int = 200
    deadline: float = 30.0
    seed: int = 0
    report: CheckReport = field(default_factory=CheckReport)

    async def run(self) -> CheckReport:
        try:
            await self._play_all()
        except RollweaveError as error:
            self.report.problems.append(str(error))
        else:
            self._assess_ends()
            self._assess_rewards()
        return self.report

    async def _play_all(self) -> None:
        await self._warm_up()
        for number in range(self.episodes):
            await self._play("random", number)
        player = "scripted"
        try:
            for number in range(self.episodes):
                await self._play("scripted", number)
        except ConfigError as error:
            player = "random"
            self.report.notes.append(str(error))
        await self._search(player)

    async def _search(self, player: str) -> None:
        """Play more episodes while all rewards are equal, to find out whether another reward exists."""
        until = time.perf_counter() + SEARCH_SECONDS
        for number in range(self.episodes, self.episodes * SEARCH_FACTOR):
            any_ended = any(episode.trajectory.info.get("ended") for episode in self.report.played)
            if not self._all_equal() or not any_ended or time.perf_counter() > until:
                return
            await self._play(player, number)

    async def _warm_up(self) -> None:
        """Reset once without measuring it, because this call starts the process and its imports."""
        task = self.source.task(0)
        environment = self.make(task)
        try:
            await self._reset(environment, task)
        finally:
            await environment.close()

    async def _play(self, player: str, number: int) -> None:
        task = self.source.task(number)
        trajectory = Trajectory(f"{player}/{number}", number, 0, task)
        played = PlayedEpisode(player, trajectory)
        environment = self.make(task)
        try:
            await self._episode(environment, played)
        finally:
            await environment.close()
        await self.scorer.score(trajectory)
        self.report.played.append(played)

    async def _episode(self, environment: HasScriptedAction, played: PlayedEpisode) -> None:
        trajectory = played.trajectory
        observation, played.reset_seconds = await self._reset(environment, trajectory.task)
        trajectory.outcome = Outcome.TRUNCATED
        for turn in range(self.max_turns):
            played.observations.append(len(text_of(observation)))
            action = await self._action(environment, played, observation, turn)
            what = f"{trajectory.task.environment}.step({action!r})"
            result, seconds = await self._in_time(environment.step(action), what)
            played.step_seconds.append(seconds)
            trajectory.observe(token_ids([]))
            trajectory.answer([], action, "stop")
            trajectory.turns[-1].reward = result.reward
            observation = result.observation
            if result.done or result.truncated:
                trajectory.outcome = Outcome.FINISHED if result.done else Outcome.TRUNCATED
                trajectory.info["ended"] = True
                return

    async def _action(self, environment: HasScriptedAction, played: PlayedEpisode, seen: Observation, turn: int) -> str:
        if played.player == "scripted":
            return await environment.scripted_action(derive(self.seed, played.trajectory.id, turn))
        return arbitrary_action(generator(self.seed, played.trajectory.id, turn), seen)

    async def _reset(self, environment: HasScriptedAction, task: Task) -> tuple[Observation, float]:
        return await self._in_time(environment.reset(task.seed, task.data), f"{task.environment}.reset({task.seed})")

    async def _in_time(self, call: Awaitable[T], what: str) -> tuple[T, float]:
        """Await the call within the deadline, and return its value and the seconds it took."""
        started = time.perf_counter()
        try:
            value = await asyncio.wait_for(call, self.deadline)
        except TimeoutError:
            fix = "it must return or raise; in a run, such an environment is killed (rollout.isolation: process)"
            raise EnvironmentFailed(f"{what} did not return within {self.deadline:g} s: {fix}") from None
        return value, time.perf_counter() - started

    def _all_equal(self) -> bool:
        return len({episode.reward for episode in self.report.played}) == 1

    def _assess_ends(self) -> None:
        played = self.report.played
        endless = [episode for episode in played if not episode.trajectory.info.get("ended")]
        if len(endless) == len(played):
            self.report.problems.append(
                f"none of {len(played)} episodes ended within {self.max_turns} turns: return done=True from step when "
                "the episode is over, or raise --max-turns if they are meant to be that long"
            )
        elif endless:
            self.report.notes.append(
                f"{len(endless)} of {len(played)} episodes did not end within {self.max_turns} turns: "
                "training cuts them at rollout.max_turns"
            )

    def _assess_rewards(self) -> None:
        played = self.report.played
        if self._all_equal():
            self.report.problems.append(
                f"all {len(played)} episodes earned exactly {played[0].reward:g}: nothing can be learned from a "
                "constant reward; return different rewards from step, or add a function (--reward file.py:function)"
            )
        elif len(played) > 2 * self.episodes:
            self.report.notes.append(
                f"rewards are rare: the first {len(played) - 1} episodes all earned {played[0].reward:g}; "
                "learning from such an environment starts slowly"
            )


def text_of(observation: Observation) -> str:
    """The text of an observation."""
    if isinstance(observation, str):
        return observation
    return "\n".join(message["content"] for message in observation)


def arbitrary_action(rng: random.Random, seen: Observation) -> str:
    """Draw an answer as a policy might give it: a letter, a digit, a word of the observation, nothing, or garbage."""
    words = text_of(seen).split() or ["?"]
    choices = [
        chr(rng.randrange(ord("A"), ord("Z") + 1)),
        str(rng.randrange(10)),
        rng.choice(words),
        "",
        "".join(chr(rng.randrange(33, 0x2FF)) for _ in range(rng.randrange(1, 40))),
    ]
    return rng.choice(choices)


def summarise(report: CheckReport) -> dict[str, Any]:
    """The figures of a check, for each player."""
    players = {player: [one for one in report.played if one.player == player] for player in ("random", "scripted")}
    figures = {player: _figures(episodes) for player, episodes in players.items() if episodes}
    return {"refused": bool(report.problems), "players": figures}


def _figures(episodes: list[PlayedEpisode]) -> dict[str, Any]:
    rewards = [episode.reward for episode in episodes]
    played = [episode.trajectory for episode in episodes]
    outcomes = Counter(str(one.outcome) if one.info.get("ended") else "cut short" for one in played)
    return {
        "episodes": len(episodes),
        "outcomes": dict(outcomes.most_common()),
        "turns": _spread([len(one.turns) for one in played]),
        "observation characters": _spread([size for episode in episodes for size in episode.observations]),
        "reset ms": _spread([episode.reset_seconds * 1e3 for episode in episodes]),
        "step ms": _spread([seconds * 1e3 for episode in episodes for seconds in episode.step_seconds]),
        "reward": _spread(rewards),
        "different rewards": len(set(rewards)),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}


def in_words(figure: Any) -> str:
    """Write a figure of the summary for a cell of a table."""
    match figure:
        case {"least": least, "mean": mean, "most": most}:
            return f"{least:.3g} to {most:.3g}, mean {mean:.3g}"
        case dict():
            return ", ".join(f"{count} {how}" for how, count in figure.items())
        case _:
            return str(figure)
