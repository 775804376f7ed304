"""Judges: what they are asked, how their words become rewards, batches, the cache, and secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollweave.config.job import Job
from rollweave.config.load import dump_job, parse_text
from rollweave.config.ready_rewards import JudgeRewardConfig
from rollweave.config.rewards import RewardConfig
from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards.judge import JudgeReward
from rollweave.rewards.scorer import Scorer
from rollweave.tasks import Task
from rollweave.trajectory import Trajectory, token_ids
from test_openai_server import ChatServer, serving


def trajectory(said: str, **data: Any) -> Trajectory:
    played = Trajectory("t/0", 0, 0, Task("row/0", "prompts", 0, {"prompt": "Why?", **data}))
    played.observe(token_ids([]))
    played.answer([], said, "stop")
    return played


def judge(server: ChatServer, **options: Any) -> JudgeReward:
    return JudgeReward(JudgeRewardConfig(url=server.url, model="judge", **options))


def scores(reward: JudgeReward, *said: str) -> list[Any]:
    """What each response gets; all of them come at once."""

    async def ask_all() -> list[Any]:
        asked: Sequence[Coroutine[Any, Any, float]] = [reward(trajectory(text)) for text in said]
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask_all())


def asked(server: ChatServer) -> list[str]:
    return [body["messages"][0]["content"] for body in server.asked]


def test_the_judge_reads_question_and_response_and_its_last_number_counts() -> None:
    with serving("Two points for style. Score: 7") as server:
        assert scores(judge(server), "Because.") == [0.7]
    (question,) = asked(server)
    assert "Why?" in question and question.endswith("Because.")
    assert (server.asked[0]["model"], server.asked[0]["temperature"]) == ("judge", 0.0)


def test_the_prompt_names_columns() -> None:
    with serving("1") as server:
        reward = judge(server, prompt="Is {response} the same as {answer}?", highest=1.0)
        assert asyncio.run(reward(trajectory("{answer}", answer="x"))) == 1.0
        with pytest.raises(RewardFailed, match="no column 'answer'"):
            reward.question(trajectory("y"))
    assert asked(server) == ["Is {answer} the same as x?"], "what a model says is no template"


def test_what_is_no_number_in_range_is_no_reward() -> None:
    with serving("I cannot say.") as server:
        (failed,) = scores(judge(server), "a")
    assert "asked for a number and said 'I cannot say.'" in str(failed)
    with serving("11") as server:
        (failed,) = scores(judge(server), "a")
    assert "it said 11, which is not from 0 to 10" in str(failed)


def test_the_same_question_is_asked_once() -> None:
    with serving("5") as server:
        reward = judge(server)
        assert scores(reward, "a", "a", "b", "a") == [0.5] * 4
        assert len(server.asked) == 2


def test_a_failure_is_not_kept() -> None:
    async def twice(reward: JudgeReward) -> float:
        with pytest.raises(RewardFailed):
            await reward(trajectory("a"))
        return await reward(trajectory("a"))

    with serving("nothing", "5") as server:
        assert asyncio.run(twice(judge(server))) == 0.5


def test_the_cache_forgets_what_was_asked_for_longest_ago() -> None:
    async def in_order(reward: JudgeReward) -> None:
        for text in ("a", "b", "a", "c", "a", "b"):
            await reward(trajectory(text))

    with serving("5") as server:
        asyncio.run(in_order(judge(server, cache=2)))
    assert [question[-1] for question in asked(server)] == ["a", "b", "c", "b"]


def test_responses_that_come_together_go_in_one_request() -> None:
    with serving("Let me see.\n1: 3\n2: 10\n**3**: 0.5") as server:
        assert scores(judge(server, batch=3), "a", "b", "c") == [0.3, 1.0, 0.05]
    (question,) = asked(server)
    assert "Below are 3 questions" in question and "---------- 2\n" in question


def test_a_batch_that_does_not_fill_is_sent_after_a_moment() -> None:
    with serving("5") as server:
        assert scores(judge(server, batch=64, batch_seconds=0.01), "a") == [0.5]


def test_what_a_batch_leaves_out_is_asked_for_alone() -> None:
    with serving("1: 3", "8") as server:
        assert scores(judge(server, batch=2), "a", "b") == [0.3, 0.8]
    assert len(server.asked) == 2


def test_a_caller_that_gives_up_takes_nothing_from_the_others() -> None:
    async def main(reward: JudgeReward) -> float:
        first = asyncio.ensure_future(reward(trajectory("a")))
        second = asyncio.ensure_future(reward(trajectory("a")))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    with serving("5") as server:
        assert asyncio.run(main(judge(server))) == 0.5


# ------------------------------------------------------------------------------------------------------------- secrets


def test_the_token_is_named_and_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_TOKEN", "in-a-variable")
    monkeypatch.setenv("OPENAI_API_KEY", "for-another-server")
    (tmp_path / "token").write_text("in-a-file\n")
    with serving("5") as server:
        for token in ("env:MY_TOKEN", f"file:{tmp_path / 'token'}", None):
            scores(judge(server, token=token), "a")
    assert server.keys == ["Bearer in-a-variable", "Bearer in-a-file", None]


def test_the_token_is_in_no_message_and_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret")
    text = "model: tiny\nenvironment: {type: prompts, file: x.jsonl}\nrewards:\n"
    text += "  - judge: {url: 'http://x', model: m, token: 'env:MY_TOKEN'}\n"
    job = parse_text(text, "job.yaml", Path("/jobs"), Job)
    assert "very-secret" not in dump_job(job) and "env:MY_TOKEN" in dump_job(job)

    with serving(401) as server:
        (failed,) = scores(judge(server, token="env:MY_TOKEN"), "a")
    assert "code 401" in str(failed) and "very-secret" not in str(failed)


def test_a_token_that_is_not_there_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    config = RewardConfig(judge=JudgeRewardConfig(url="http://x", model="m", token="env:MY_TOKEN"))
    with pytest.raises(ConfigError, match="rewards: judge: token: the environment variable MY_TOKEN is not set"):
        Scorer([config], Path())


def test_a_job_names_it_like_any_reward() -> None:
    with serving("5") as server:
        config = RewardConfig(judge=JudgeRewardConfig(url=server.url, model="m"), weight=2.0)
        played = trajectory("a")
        asyncio.run(Scorer([config], Path()).score(played))
    assert played.rewards == {"environment": 0.0, "judge": 1.0}
