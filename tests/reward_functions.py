"""What tests of reward functions share: rewards as a user would write them, trajectories, servers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2

from rollweave.config.rewards import CallConfig, InstancesConfig, RewardConfig
from rollweave.rewards.scorer import Scorer
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Span, Trajectory, token_ids

REWARDS = """
import ctypes, os, sys, time
from rollweave import RewardResult

held = []

def score(trajectory):
    text = trajectory.turns[-1].text
    if text == "segfault":
        ctypes.string_at(0)
    if text == "hang":
        open(os.path.join(os.path.dirname(__file__), "hanging"), "w").close()
        time.sleep(1000)
    if text == "exit":
        os._exit(3)
    if text == "huge":
        return float(len(bytearray(8 * 2**30)))
    if text == "leak":
        held.append(bytearray(200 * 2**20))
    if text == "raise":
        raise KeyError("no such column")
    if text == "nan":
        return float("nan")
    return RewardResult(float(len(text)), {"process": float(os.getpid())})

async def slow(trajectory):
    import asyncio
    await asyncio.sleep(0.3)
    return float(trajectory.turns[-1].text)
"""


def played(text: str, number: int = 0) -> Trajectory:
    trajectory = Trajectory(f"{number}.1.0", number, 1, Task(f"row/{number}", "prompts", 5, {"answer": "4"}))
    trajectory.observe(token_ids([1, 2, 3]))
    trajectory.answer([Span(token_ids([4, 5]), version=2)], text, "stop")
    trajectory.turns[-1].reward = 0.25
    trajectory.outcome = Outcome.FINISHED
    trajectory.admitted_version = 2
    return trajectory


def reward_file(folder: Path) -> Path:
    file = folder / "mine.py"
    file.write_text(REWARDS)
    return file


def config(function: str, call: CallConfig | None = None, instances: InstancesConfig | None = None) -> RewardConfig:
    return RewardConfig(function=function, call=call or CallConfig(), instances=instances or InstancesConfig())


@asynccontextmanager
async def scoring(*configs: RewardConfig, base: Path = Path()) -> AsyncIterator[Scorer]:
    scorer = Scorer(configs, base)
    try:
        yield scorer
    finally:
        await scorer.aclose()


async def outcomes(scorer: Scorer, texts: list[str]) -> list[float | str]:
    """What each becomes, all at once: its reward, or why there is none."""
    trajectories = [played(text, number) for number, text in enumerate(texts)]
    ends = await asyncio.gather(*map(scorer.score, trajectories), return_exceptions=True)
    return [
        trajectory.rewards[scorer.rewards[0].name] if end is None else str(end)
        for trajectory, end in zip(trajectories, ends, strict=True)
    ]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


@contextmanager
def reward_server(file: Path, *options: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """`rollweave reward serve` as a user starts it; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "rollweave.cli.main", "reward", "serve", f"{file.name}:score", f"{file.name}:slow"]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options], cwd=file.parent, env={**os.environ, **(environment or {})}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            try:
                httpx2.get(url)
                break
            except httpx2.TransportError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(20)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[str]:
    """A server of bytes; its URL."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def read_http(reader: asyncio.StreamReader) -> bytes:
    """The body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return await reader.readexactly(length)


def http_answer(text: str, status: int = 200) -> bytes:
    return (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (no event comes from there)
            await asyncio.sleep(0.02)
