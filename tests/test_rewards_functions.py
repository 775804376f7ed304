"""Rewards as functions elsewhere: processes of a pool, servers, function platforms. Real ones, on the wall clock."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from reward_functions import (
    config,
    http_answer,
    outcomes,
    played,
    raw_server,
    read_http,
    reward_file,
    reward_server,
    scoring,
    until,
)
from rollweave.cluster.decorators import ServerlessFunction
from rollweave.cluster.resolve import function_at
from rollweave.config.rewards import CallConfig, InstancesConfig, RewardConfig
from rollweave.errors import ConfigError, RewardFailed
from rollweave.rewards.function import as_function, as_lambda
from rollweave.rewards.scorer import CALLS, RewardResult
from rollweave.rewards.wire import RewardAnswer, WrongMessage, read_answer, read_request, write_answer, write_request
from rollweave.trajectory import Trajectory

ONCE = CallConfig(tries=1, timeout=20.0)

# ------------------------------------------------------------------------------------------------------------ wire


def test_a_trajectory_arrives_as_it_was_but_for_its_log_probs() -> None:
    sent = played("hello ä", 3)
    key, arrived = read_request(write_request(sent, "mine").body)
    assert arrived == sent and len(key) == 32
    assert (arrived.length, arrived.sampled_tokens, arrived.oldest_version) == (5, 2, 2)


def test_the_key_is_the_content() -> None:
    one = write_request(played("a"), "mine")
    assert one == write_request(played("a"), "mine")
    others = [
        write_request(played("b"), "mine"),
        write_request(played("a", 1), "mine"),
        write_request(played("a"), "x"),
    ]
    assert len({one.key, *(other.key for other in others)}) == 4


def test_an_answer_of_another_call_is_noticed() -> None:
    text = write_answer("k", RewardAnswer(RewardResult(0.5, {"words": 2.0}), seconds=0.1, cold=True))
    assert read_answer(text, "k") == RewardAnswer(RewardResult(0.5, {"words": 2.0}), "", 0.1, True)
    with pytest.raises(WrongMessage, match="belongs to another call: its key is 'k', not 'other'"):
        read_answer(text, "other")
    with pytest.raises(WrongMessage, match="no reward answer"):
        read_answer("<html>starting</html>", "k")
    with pytest.raises(RewardFailed, match="version 2 of the wire format, not 1"):
        read_answer('{"version": 2, "key": "k"}', "k")
    with pytest.raises(RewardFailed, match=r"'0\.5', and a reward must be a finite number"):
        read_answer('{"version": 1, "key": "k", "reward": "0.5"}', "k")


def test_a_row_that_is_no_json_is_named() -> None:
    trajectory = played("a")
    trajectory.task.data["image"] = b"bytes"
    with pytest.raises(RewardFailed, match=r"a value of its task's row is no JSON .*bytes.*use a local function"):
        write_request(trajectory, "mine")


# ------------------------------------------------------------------------------------------------------------ pool


def pool_config(file: Path, **changes: Any) -> RewardConfig:
    call = CallConfig(tries=changes.pop("tries", 1), timeout=changes.pop("timeout", 20.0), backoff=0.01)
    return config(f"pool://{file}:score", call, InstancesConfig(**{"maximum": 3, "idle_seconds": 0.5, **changes}))


def test_a_pool_grows_from_zero_and_stops_when_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with scoring(pool_config(reward_file(tmp_path))) as scorer:
            pool = scorer.rewards[0].function._backend._pool  # type: ignore[attr-defined]
            assert pool.counts().processes == 0
            assert await outcomes(scorer, ["a" * n for n in range(1, 13)]) == [float(n) for n in range(1, 13)]
            full = pool.counts()
            assert (full.processes, full.starts, full.calls, full.in_flight) == (3, 3, 12, 0)
            await until(lambda: not pool.counts().processes)
            ended = pool.counts()
            assert (ended.processes, ended.starts) == (0, 3)
            assert 0 < ended.busy < ended.paid
            assert await outcomes(scorer, ["abc"]) == [3.0]
            assert pool.counts().starts == 4

    asyncio.run(main())


def test_a_reward_that_crashes_hangs_or_needs_too_much_takes_only_its_own_call(tmp_path: Path) -> None:
    bad = ["segfault", "exit", "huge", "raise", "nan"]

    async def main() -> list[float | str]:
        async with scoring(pool_config(reward_file(tmp_path), memory_gb=1.0)) as scorer:
            return await outcomes(scorer, ["a", *bad, "bb", "ccc", "dddd"])

    first, *failed, second, third, fourth = asyncio.run(main())
    assert [first, second, third, fourth] == [1.0, 2.0, 3.0, 4.0]
    said = ["ended by SIGSEGV", "with exit code 3", "MemoryError", "KeyError: 'no such column'", "a finite number"]
    for cause, words in zip(failed, said, strict=True):
        assert words in str(cause), cause


def test_a_reward_that_never_returns_is_killed_at_its_deadline(tmp_path: Path) -> None:
    async def main() -> tuple[list[float | str], Any]:
        async with scoring(pool_config(reward_file(tmp_path), timeout=5.0)) as scorer:
            found = await outcomes(scorer, ["a", "hang", "bb"])
            pool = scorer.rewards[0].function._backend._pool  # type: ignore[attr-defined]
            return found, pool.counts()

    (first, hung, second), counts = asyncio.run(main())
    assert (first, second) == (1.0, 2.0)
    assert "was killed after 5 s (call.timeout)" in str(hung)
    assert counts.deaths == 1 and counts.processes < counts.starts


def test_a_process_that_keeps_memory_is_replaced_before_it_fails(tmp_path: Path) -> None:
    async def main() -> None:
        instances = {"maximum": 1, "memory_gb": 0.7, "idle_seconds": 60.0}
        async with scoring(pool_config(reward_file(tmp_path), **instances)) as scorer:
            pool = scorer.rewards[0].function._backend._pool  # type: ignore[attr-defined]
            for _ in range(6):  # 1.2 GB in all
                assert await outcomes(scorer, ["leak"]) == [4.0]
            assert pool.counts().starts >= 2 and pool.counts().deaths == 0

    asyncio.run(main())


def test_a_call_that_is_given_up_ends_its_process_and_frees_the_seat(tmp_path: Path) -> None:
    async def main() -> None:
        async with scoring(pool_config(reward_file(tmp_path), maximum=1)) as scorer:
            hung = asyncio.ensure_future(scorer.score(played("hang")))
            waiting = asyncio.ensure_future(outcomes(scorer, ["abc"]))
            await until((tmp_path / "hanging").exists)
            hung.cancel()
            assert await waiting == [3.0]

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------ HTTP


def test_a_second_answer_on_a_connection_is_not_taken_for_the_next_call() -> None:
    """The server answers twice, the second time something else. The next call on that connection would read it."""
    doubled = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal doubled
        try:
            while True:
                key = json.loads(await read_http(reader))["key"]
                text = write_answer(key, RewardAnswer(RewardResult(7.0)))
                if doubled == 0:
                    doubled += 1
                    writer.write(http_answer(text))
                    await read_http(reader)  # only now, when the client waits for the answer to its next call
                    writer.write(http_answer(write_answer(key, RewardAnswer(RewardResult(1000.0)))))
                else:
                    writer.write(http_answer(text))
        except asyncio.IncompleteReadError:
            writer.close()

    async def main() -> None:
        async with raw_server(serve) as url, scoring(config(url, CallConfig(backoff=0.01))) as scorer:
            reports = []
            for number in range(3):
                trajectory = played("x", number)
                await scorer.score(trajectory)
                assert trajectory.reward == 0.25 + 7.0
                reports.append(next(iter(trajectory.info[CALLS].values()))["tries"])
            assert reports == [{"answered": 1}, {"garbled": 1, "answered": 1}, {"answered": 1}]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http_answer("who are you", 401), "answered 401: who are you (it wants one: call.token)"),
        (http_answer("no such page", 404), "answered 404: no such page"),
        (http_answer("x" * 2_000_000), "answered more than 1 MB (call.max_answer_mb)"),
        (http_answer("[]"), "gave no answer in 2 tries; the last one: it is no reward answer"),
        (b"HTTP/1.1 200 X\r\ncontent-length: 50\r\n\r\nhalf", "the last one: the connection to"),
    ],
)
def test_what_a_server_says_instead_of_an_answer_is_in_the_cause(answer: bytes, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.loads(await read_http(reader))
        good = body["trajectory"]["turns"][0]["text"] == "good"
        writer.write(http_answer(write_answer(body["key"], RewardAnswer(RewardResult(1.0)))) if good else answer)
        await writer.drain()
        writer.close()

    async def main() -> list[float | str]:
        call = CallConfig(tries=2, backoff=0.2)
        async with raw_server(serve) as url, scoring(config(url, call)) as scorer:
            bad = asyncio.ensure_future(outcomes(scorer, ["bad"]))
            await asyncio.sleep(0.05)
            await outcomes(scorer, ["good"])  # the function works: so the other call may give up
            return await bad

    (cause,) = asyncio.run(main())
    assert said in str(cause) and "failed for 0.1.0" in str(cause)


def test_too_large_a_trajectory_is_not_sent() -> None:
    async def main() -> list[float | str]:
        async with scoring(config("http://127.0.0.1:9/", CallConfig(max_request_mb=0.001))) as scorer:
            return await outcomes(scorer, ["x" * 2000])

    assert "on the wire, and call.max_request_mb is 0.001: raise it" in str(asyncio.run(main())[0])


# ---------------------------------------------------------------------------------------------------------- serving


def test_served_functions_share_one_pool_and_need_the_token(tmp_path: Path) -> None:
    file = reward_file(tmp_path)
    secret = "s3cret-of-the-server"
    options = ["--token", "env:REWARD_TOKEN", "--maximum", "2", "--idle-seconds", "0.5", "--max-request-mb", "0.1"]

    async def call(url: str) -> None:
        named = CallConfig(token="env:REWARD_TOKEN", tries=2, backoff=0.01)
        async with (
            scoring(config(f"{url}/score", named)) as one,
            scoring(config(f"{url}/slow", named)) as other,
            scoring(config(f"{url}/score", ONCE)) as unknown,
            scoring(config(f"{url}/scor", named)) as misspelt,
        ):
            found = await asyncio.gather(
                outcomes(one, ["a", "raise", "segfault", "bb", "x" * 200_000]), outcomes(other, ["1", "2", "3"])
            )
            assert [found[0][0], found[0][3], *found[1]] == [1.0, 2.0, 1.0, 2.0, 3.0]
            assert "KeyError: 'no such column'" in str(found[0][1])
            assert "SIGSEGV" in str(found[0][2])
            assert "answered 413: larger than 0.1 MB" in str(found[0][4])
            assert "answered 401" in str((await outcomes(unknown, ["a"]))[0])
            assert "answered 400: no function 'scor' here; did you mean 'score'?" in str(
                (await outcomes(misspelt, ["a"]))[0]
            )

    os.environ["REWARD_TOKEN"] = secret
    try:
        with reward_server(file, *options) as url:
            assert httpx2.get(url).status_code == 401
            asyncio.run(call(url))
            counts = httpx2.get(url, headers={"Authorization": f"Bearer {secret}"}).json()
    finally:
        del os.environ["REWARD_TOKEN"]
    assert counts["functions"] == ["score", "slow"] and counts["in_flight"] == 0
    assert counts["starts"] >= 2 and counts["deaths"] == 2 and counts["calls"] == 8
    assert 0 < counts["busy"] < counts["paid"] and counts["seconds"]["p50"] > 0


def test_a_repeated_request_is_computed_once(tmp_path: Path) -> None:
    """As after a connection that broke: the same key again, while it is computed and afterwards."""
    request = write_request(played("7"), "slow")

    async def ask(url: str) -> list[dict[str, Any]]:
        async with httpx2.AsyncClient(timeout=60) as http:
            both = await asyncio.gather(*(http.post(f"{url}/slow", content=request.body) for _ in range(3)))
            return [answer.json() for answer in [*both, await http.post(f"{url}/slow", content=request.body)]]

    with reward_server(reward_file(tmp_path)) as url:
        answers = asyncio.run(ask(url))
        assert httpx2.get(url).json()["calls"] == 1
    assert {(answer["key"], answer["reward"]) for answer in answers} == {(request.key, 7.0)}


class FlaskRequest:
    def __init__(self, body: bytes, **headers: str) -> None:
        self._body, self.headers = body, headers

    def get_data(self) -> bytes:
        return self._body


def test_a_platform_s_function_answers_in_the_wire_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_file(tmp_path)
    monkeypatch.setenv("MINE", "abc")
    function = as_function("mine.py:score", tmp_path, "env:MINE")
    request = write_request(played("four"), "score")
    assert function(FlaskRequest(request.body))[1] == 401
    text, status, _ = function(FlaskRequest(request.body, Authorization="Bearer abc"))
    answer = read_answer(text, request.key)
    assert status == 200 and answer.cold and answer.result is not None and answer.result.value == 4.0
    assert function(FlaskRequest(b"{}", Authorization="Bearer abc"))[1] == 400
    again = read_answer(function(FlaskRequest(request.body, Authorization="Bearer abc"))[0], request.key)
    assert not again.cold


def test_a_lambda_takes_events(tmp_path: Path) -> None:
    reward_file(tmp_path)
    handler, request = as_lambda("mine.py:score", tmp_path), write_request(played("four"), "score")
    for event in (
        {"body": request.body.decode(), "headers": {}},
        {"body": base64.b64encode(request.body).decode(), "isBase64Encoded": True},
    ):
        said = handler(event, None)
        assert said["statusCode"] == 200 and read_answer(said["body"], request.key).result is not None


def test_functions_framework_that_fails_in_five_ways_loses_and_changes_no_reward() -> None:
    """The short form of `python -m bench.rewards`, which has the bar."""
    pytest.importorskip("functions_framework", reason="pip install 'rollweave[functions]'")
    from bench.rewards.delivery import Setup, deliver, problems

    setup = Setup(calls=200, concurrency=64, seconds=0.05, timeout=4.0, outage=3.0)
    faults = deliver(setup, "keys", hedge_after=1.0)
    assert problems(faults, setup) == []
    assert {"unavailable", "hang", "drop", "late", "second", "other"} <= faults["server"]["met"].keys()
    outage = deliver(setup, "outage")
    assert problems(outage, setup) == []
    assert outage["metrics"]["breaker_opened"] >= 1 and outage["metrics"]["breaker_seconds"] > 0


# -------------------------------------------------------------------------------------------------------------- runs

JOB = """
model: {type: tiny, hidden: 32, layers: 1, head_dim: 8, warm_start: {steps: 0}}
environment: {type: frozen_lake}
pipeline: {type: sync+}
rollout: {groups_per_step: 2, group_size: 2, environments: 2, max_turns: 3}
rewards: [{function: 'pool://mine.py:score', instances: {maximum: 2}}]
training: {steps: 2}
evaluation: {every: 0}
logging: {tensorboard: false}
"""


def rollweave(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollweave.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_run_with_a_reward_pool_is_trained_and_replayed(runtime: str, tmp_path: Path) -> None:
    reward_file(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    out = tmp_path / "run"
    done = rollweave("train", str(tmp_path / "job.yaml"), f"runtime.type={runtime}", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["function/score/calls"] for row in rows] == [4, 4]
    assert sum(row["function/score/cold_starts"] for row in rows) == 2
    assert all(0 < row["function/score/utilisation"] <= 1 for row in rows)
    if runtime == "inline":
        replayed = rollweave("replay", str(out))
        assert replayed.returncode == 0 and "all the same (2 steps)" in replayed.stdout, replayed.stdout


# ---------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"function": "htp://x"}, "function begins with htp://, which is no kind of function; did you mean 'http'?"),
        ({"function": "http://"}, "names no host"),
        ({"function": "http://me:pass@host"}, "holds a user name or a password: name a secret in call.token"),
        ({"function": "a.py:f", "call": {"timeout": 1.0}}, r"call.timeout has no effect on a local:// function"),
        ({"function": "pool://a.py:f", "call": {"token": "env:X"}}, "call.token has no effect on a pool:// function"),
        ({"function": "http://h", "instances": {"maximum": 9}}, "instances.maximum has no effect on a http:// func"),
        ({"function": "pool://a.py:f", "instances": {"minimum": 9}}, "minimum is 9, more than maximum"),
    ],
)
def test_what_cannot_work_is_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as refused:
        RewardConfig.model_validate(data)
    assert "me:pass" not in str(refused.value.errors()[0]["ctx"]["error"])


@pytest.mark.parametrize(("name", "shown"), [("http://h:1/a/score", "score"), ("https://h.run.app", "h.run.app")])
def test_a_function_elsewhere_has_a_name(name: str, shown: str) -> None:
    assert RewardConfig(function=name).shown_name == shown


def test_a_worker_s_serverless_function_is_called_like_a_reward(tmp_path: Path) -> None:
    reward_file(tmp_path)

    async def main(call: Any, trajectory: Trajectory) -> float:
        value: float = await call(trajectory)
        return value

    call = function_at(ServerlessFunction("judge", "pool://mine.py:score"), tmp_path)
    assert asyncio.run(main(call, played("four"))) == 4.0
    with pytest.raises(ConfigError, match=r"h: call\.token: the environment variable NOT_SET is not set"):
        function_at(ServerlessFunction("judge", "http://h", "env:NOT_SET"), tmp_path)
    with pytest.raises(ConfigError, match=r"write local://mine\.py:score"):
        function_at(ServerlessFunction("judge", "mine.py:score"), tmp_path)
