"""Secrets are named by variable or file: they are in nothing that a run reads, writes or prints."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from reward_functions import http_answer, raw_server, read_http, reward_file, reward_server
from rollweave.config.load import load_job
from rollweave.config.secrets import check_secret, read_secret, without
from rollweave.errors import ConfigError

SECRET = "tok-5ecret-0f-the-function"

JOB = """
model: {type: tiny, hidden: 32, layers: 1, head_dim: 8, warm_start: {steps: 0}}
environment: {type: frozen_lake}
pipeline: {type: sync+}
rollout: {groups_per_step: 2, group_size: 4, environments: 4, max_turns: 3}
training: {steps: 2}
evaluation: {every: 0}
checkpoint: {every: 1}
runtime: {type: inline, threads: 1}
"""


def train(folder: Path, rewards: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    (folder / "job.yaml").write_text(f"{JOB}rewards:\n{rewards}")
    command = [sys.executable, "-m", "rollweave.cli.main", "train", str(folder / "job.yaml"), "--out"]
    environment = {**os.environ, "REWARD_TOKEN": SECRET}
    done = subprocess.run([*command, str(folder / "run")], env=environment, capture_output=True, text=True, timeout=240)
    return folder / "run", done


def files_with(secret: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.timeout(300)
def test_no_file_of_a_run_holds_the_token_and_its_metrics_add_up(tmp_path: Path) -> None:
    """One function is served with the token, which its server repeats in an answer that fails."""
    file = reward_file(tmp_path)
    (tmp_path / "token").write_text(f"{SECRET}\n")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.loads(await read_http(reader))
        if body["trajectory"]["member"] == 0:
            writer.write(http_answer(f"403 for Bearer {SECRET}", 403))
        else:
            writer.write(http_answer(json.dumps({"version": 1, "key": body["key"], "reward": 1.0})))
        await writer.drain()
        writer.close()

    served = reward_server(file, "--token", "env:REWARD_TOKEN", environment={"REWARD_TOKEN": SECRET})
    with served as url, own_thread(serve) as other:
        price = "instances: {price_per_gb_second: 0.1}"
        rewards = [
            f"  - {{function: '{url}/score', call: {{token: 'file:token'}}, {price}}}",
            f"  - {{function: '{other}', name: echo, call: {{token: 'env:REWARD_TOKEN', tries: 2}}}}",
            f"  - {{function: 'pool://{file}:score', name: pooled, instances: {{maximum: 1}}}}",
        ]
        out, done = train(tmp_path, "\n".join(rewards))
    assert done.returncode == 0, done.stderr
    assert files_with(SECRET, out) == [] and SECRET not in done.stdout + done.stderr
    causes = [event["data"]["cause"] or "" for event in lines(out / "events.jsonl") if event["name"] == "reward.end"]
    assert any("403 for Bearer [secret] (its token is wrong: call.token)" in cause for cause in causes)
    assert "file:" in (out / "config.yaml").read_text() and "env:REWARD_TOKEN" in (out / "config.yaml").read_text()
    rows = lines(out / "metrics.jsonl")
    assert len(rows) == 2
    for row in rows:
        assert row["ledger/attempt/reward-failed"] >= 2
        for name in ("score", "echo", "pooled"):
            adds_up({key.removeprefix(f"function/{name}/"): value for key, value in row.items() if f"n/{name}/" in key})
        assert row["function/score/cost"] == pytest.approx(row["function/score/function_seconds"] * 2.0 * 0.1)


def adds_up(row: dict[str, float]) -> None:
    tries = sum(value for key, value in row.items() if key.startswith("tries/"))
    assert row["calls"] > 0 and tries == row["calls"] + row["retries"] + row["hedges"]
    assert 0 < row["seconds_p50"] <= row["seconds_p90"] <= row["seconds_p99"]
    assert 1 <= row["in_flight_max"] <= 8


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class own_thread:
    """A raw server beside the test's main thread."""

    def __init__(self, serve: Any) -> None:
        self._serve, self._ready, self._loop = serve, threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        self._over = asyncio.Event()
        async with raw_server(self._serve) as self._url:
            self._ready.set()
            await self._over.wait()

    def __enter__(self) -> str:
        self._thread.start()
        self._ready.wait()
        return self._url

    def __exit__(self, *failure: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


@pytest.mark.parametrize("value", [SECRET, "123456789", "[a, b]", "'env:'", "env:not a name", "'file:'"])
def test_a_token_in_a_job_file_is_refused_and_not_repeated(value: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}rewards:\n  - function: http://host/\n    call:\n      token: {value}\n")
    with pytest.raises(ConfigError, match=r"job\.yaml:\d+: .*token.*expected env:NAME .* or file:PATH") as refused:
        load_job(path)
    assert value not in str(refused.value)


@pytest.mark.parametrize("override", [f"rewards.0.call.token={SECRET}", f"rewards.0={{call: {{token: {SECRET}}}}}"])
def test_a_token_as_an_override_is_refused_and_not_repeated(override: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}rewards:\n  - function: http://host/\n")
    with pytest.raises(ConfigError) as refused:
        load_job(path, [override])
    assert "expected env:NAME" in str(refused.value) and SECRET not in str(refused.value)


def test_a_secret_is_read_where_its_name_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", SECRET)
    (tmp_path / "token").write_text(f"  {SECRET}\n")
    assert read_secret("env:MINE", "key") == read_secret(f"file:{tmp_path}/token", "key") == SECRET
    assert read_secret(None, "key") is None
    with pytest.raises(ConfigError, match="key: the environment variable OTHER is not set"):
        read_secret("env:OTHER", "key")
    with pytest.raises(ConfigError, match="key: the file /none does not exist"):
        read_secret("file:/none", "key")
    assert without(SECRET, f"Bearer {SECRET}!") == "Bearer [secret]!"
    with pytest.raises(ConfigError) as refused:
        check_secret(SECRET, "--token")
    assert SECRET not in str(refused.value)
