"""Reward functions: loaded, called, checked, weighted; and the ready rules."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from rollweave.clock import Clock, DeadlineExceeded, run_virtual, run_wall
from rollweave.config.rewards import RewardConfig
from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards import rules
from rollweave.rewards.scorer import THREADS_LEFT, NamedReward, Scorer, call_in_thread
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory, token_ids

MINE = """
import asyncio, math
from rollweave.rewards.scorer import RewardResult

def length(trajectory): return len(trajectory.turns[-1].text)
def yes(trajectory): return True
async def later(trajectory):
    await asyncio.sleep(0)
    return RewardResult(2.0, {"style": 0.5})
def nothing(trajectory): pass
def nan(trajectory): return math.nan
def text(trajectory): return "1.0"
def infinite(trajectory): return RewardResult(math.inf)
def raises(trajectory):
    return trajectory.task.data["missing"]
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def trajectory(*answers: str, **data: Any) -> Trajectory:
    played = Trajectory("t/0", 0, 0, Task("row/0", "prompts", 0, data))
    for answer in answers:
        played.observe(token_ids([]))
        played.answer([], answer, "stop")
        played.turns[-1].reward = 0.25
    return played


def scored(folder: Path, *configs: RewardConfig) -> Trajectory:
    played = trajectory("first", "answer")
    asyncio.run(Scorer(configs, folder).score(played))
    return played


def test_step_rewards_and_weighted_functions_add_up(folder: Path) -> None:
    played = scored(
        folder,
        RewardConfig(function="mine.py:length", weight=-0.5),
        RewardConfig(function="mine.py:later", name="judge"),
        RewardConfig(function="mine.py:yes"),
    )
    assert played.rewards == {"environment": 0.5, "length": -3.0, "judge": 2.0, "yes": 1.0}
    assert played.reward == 0.5
    assert played.info == {"reward_parts": {"judge": {"style": 0.5}}}


def test_a_function_may_be_for_some_tasks_only(folder: Path) -> None:
    configs = [RewardConfig(function="mine.py:yes", tasks=(task,), name=task) for task in ("prompts", "other")]
    assert scored(folder, *configs).rewards == {"environment": 0.5, "prompts": 1.0}
    assert Scorer(configs, folder).awaited(trajectory("answer")) == ("prompts",)


def test_functions_given_in_python_count_like_named_ones(folder: Path) -> None:
    played = trajectory("answer")
    given = NamedReward("mine", lambda t: len(t.turns), 2.0, "mine")
    asyncio.run(Scorer([RewardConfig(function="mine.py:yes")], folder, [given]).score(played))
    assert played.rewards == {"environment": 0.25, "yes": 1.0, "mine": 2.0}


def test_without_functions_the_environment_alone_decides(folder: Path) -> None:
    assert scored(folder).rewards == {"environment": 0.5}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nothing",
            r"mine\.py:nothing returned None for t/0: a reward must be a finite number; return one on every path",
        ),
        ("nan", "returned nan"),
        ("text", r"returned '1\.0'"),
        ("infinite", "inf"),
        ("raises", r"mine\.py:raises raised for t/0: KeyError: 'missing' \(.*mine\.py:15\)"),
    ],
)
def test_a_failing_function_is_named_with_the_fix_and_never_a_zero(folder: Path, name: str, message: str) -> None:
    played = trajectory("a")
    with pytest.raises(RewardFailed, match=message):
        asyncio.run(Scorer([RewardConfig(function=f"mine.py:{name}")], folder).score(played))
    assert played.rewards == {}


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([RewardConfig(function="mine.py:lenght")], "did you mean 'length'"),
        ([RewardConfig(function="mine.py:number")], "is a int: name a function"),
        ([RewardConfig(function="mine.py:yes")] * 2, "two are called 'yes'"),
        ([RewardConfig(function="mine.py:yes", name="environment")], "two are called 'environment'"),
    ],
)
def test_bad_configurations_are_refused_before_anything_is_scored(folder: Path, configs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scorer(configs, folder)


def test_a_ready_rule_is_named_like_any_function(folder: Path) -> None:
    played = trajectory(" 4 ", answer=4)
    asyncio.run(Scorer([RewardConfig(function="rollweave.rewards.rules:exact_match")], folder).score(played))
    assert played.rewards["exact_match"] == 1.0


@pytest.mark.parametrize(
    ("rule", "answer", "wanted", "score"),
    [
        (rules.exact_match, "Paris\n", "Paris", 1.0),
        (rules.exact_match, "paris", "Paris", 0.0),
        (rules.contains, "It is Paris.", "Paris", 1.0),
        (rules.contains, "It is London.", "Paris", 0.0),
        (rules.regex_match, "the 42nd", r"\b4\d", 1.0),
        (rules.regex_match, "the 52nd", r"\b4\d", 0.0),
        (rules.numeric_match, "3 + 4 = 1,007.0", 1007, 1.0),
        (rules.numeric_match, "1007, no: 8", 1007, 0.0),
        (rules.numeric_match, "x = -.5", -0.5, 1.0),
        (rules.numeric_match, "x = 1e-3.", "0.001", 1.0),
        (rules.numeric_match, "about 3.14", 3.15, 0.0),
        (rules.numeric_match, "no idea", 3, 0.0),
        (rules.numeric_match, "first 2, then 3", "#### 3", 1.0),
    ],
)
def test_rules(rule: Any, answer: str, wanted: Any, score: float) -> None:
    assert rule(trajectory("earlier 99", answer, answer=wanted)) == score


def test_rules_take_other_columns_and_name_missing_ones() -> None:
    assert rules.exact_match(trajectory("x", solution="x"), column="solution") == 1.0
    with pytest.raises(RewardFailed, match="row/0: its row has no column 'answer'; did you mean 'answers'"):
        rules.exact_match(trajectory("x", answers="x"))
    with pytest.raises(RewardFailed, match="no regular expression"):
        rules.regex_match(trajectory("x", answer="("))
    with pytest.raises(RewardFailed, match="holds no number"):
        rules.numeric_match(trajectory("1", answer="one"))


def test_an_episode_without_answers_matches_nothing() -> None:
    assert rules.exact_match(trajectory(answer="x")) == 0.0


# ------------------------------------------------------------------------------------- side by side, beside the loop


def test_the_rewards_of_one_trajectory_run_side_by_side() -> None:
    async def main(clock: Clock) -> tuple[float, Trajectory]:
        async def slow(trajectory: Trajectory) -> float:
            await clock.sleep(5.0)
            return 1.0

        names = ("judge", "format", "length")
        played = trajectory("answer")
        await Scorer([], Path(), [NamedReward(name, slow, 2.0, name) for name in names]).score(played)
        return clock.now(), played

    seconds, played = run_virtual(main)
    assert seconds == 5.0
    assert played.rewards == {"environment": 0.25, "judge": 2.0, "format": 2.0, "length": 2.0}


def test_the_first_reward_that_fails_ends_the_others() -> None:
    async def main(clock: Clock) -> float:
        async def slow(trajectory: Trajectory) -> float:
            await clock.sleep(5.0)
            return 1.0

        async def fails(trajectory: Trajectory) -> float:
            await clock.sleep(1.0)
            raise ValueError("no score today")

        rewards = [NamedReward("slow", slow, 1.0, "slow"), NamedReward("fails", fails, 1.0, "fails")]
        with pytest.raises(RewardFailed, match="fails raised for t/0: ValueError: no score today"):
            await Scorer([], Path(), rewards).score(trajectory("answer"))
        return clock.now()

    assert run_virtual(main) == 1.0


def test_a_plain_function_computes_beside_the_loop() -> None:
    """Two that wait for each other: neither could end if one of them held the loop, or the other."""
    meeting = threading.Barrier(2, timeout=20.0)

    def meets(trajectory: Trajectory) -> float:
        assert threading.current_thread().daemon, "the end of the process would wait for it"
        return float(meeting.wait() >= 0)

    async def main(clock: Clock) -> Trajectory:
        played = trajectory("answer")
        rewards = [NamedReward(name, meets, 1.0, name) for name in ("one", "other")]
        await Scorer([], Path(), rewards, call_in_thread).score(played)
        return played

    assert run_wall(main).rewards == {"environment": 0.25, "one": 1.0, "other": 1.0}


def test_what_a_plain_function_raises_in_its_thread_is_told_as_ever(folder: Path) -> None:
    async def main(clock: Clock) -> None:
        await Scorer([RewardConfig(function="mine.py:raises")], folder, call_plain=call_in_thread).score(
            trajectory("a")
        )

    with pytest.raises(RewardFailed, match=r"mine.py:raises raised for t/0: KeyError: 'missing' \(.*mine.py:15\)"):
        run_wall(main)


@pytest.mark.parametrize("error", [StopIteration, CancelledError])
def test_what_a_future_or_a_task_would_take_for_its_own_is_a_failed_reward(error: type[Exception]) -> None:
    def score(trajectory: Trajectory) -> float:
        raise error

    async def main(clock: Clock) -> None:
        await NamedReward("mine", score, 1.0, "mine.py:score")(trajectory("a"), call_in_thread)

    with pytest.raises(RewardFailed, match=r"mine\.py:score raised for t/0"):
        run_wall(main)


def test_a_plain_function_that_hangs_is_given_up_and_counted() -> None:
    ends = threading.Event()

    async def main(clock: Clock) -> Trajectory:
        played = trajectory("answer")
        reward = NamedReward("hangs", lambda trajectory: float(ends.wait()), 1.0, "hangs")
        with pytest.raises(DeadlineExceeded), clock.wait("scoring", "reward hangs", 0.05):
            await Scorer([], Path(), [reward], call_in_thread).score(played)
        return played

    try:
        assert run_wall(main).info[THREADS_LEFT] == 1
    finally:
        ends.set()
