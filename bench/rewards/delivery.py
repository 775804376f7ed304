"""Calls a function of functions-framework that is made to fail, and checks every reward."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from rollweave.clock import Clock
from rollweave.config.rewards import CallConfig, InstancesConfig, RewardConfig
from rollweave.observability.meters import CallMeter
from rollweave.rewards.scorer import CALLS, Scorer
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Span, Trajectory, token_ids

HERE = Path(__file__).parent
NAME = "score"
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Setup:
    calls: int = 2000
    concurrency: int = 256
    seconds: float = 0.1
    """That the function takes."""
    timeout: float = 3.0
    """Of a try."""
    outage: float = 10.0


def trajectories(count: int) -> list[Trajectory]:
    """Each demands a reward of its own: its number / 8."""
    made = []
    for number in range(count):
        one = Trajectory(f"{number}.0.0", number, 0, Task(f"bench/{number}", "prompts", number, {"answer": "4"}))
        one.observe(token_ids(range(100)))
        one.answer([Span(token_ids(range(100)), version=1)], str(number), "stop")
        one.outcome = Outcome.FINISHED
        made.append(one)
    return made


@contextmanager
def function_server(setup: Setup, faults: str) -> Iterator[str]:
    """A server of functions-framework in a process of its own; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "BENCH_FAULTS": faults,
        "BENCH_SECONDS": str(setup.seconds),
        "BENCH_TIMEOUT": str(setup.timeout),
        "BENCH_OUTAGE": str(setup.outage),
    }
    source = ["--asgi", "--source", str(HERE / "faulty.py"), "--target", "faulty"]
    command = [sys.executable, "-m", "functions_framework", *source, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            httpx2.get(url, timeout=5.0)
            return
        except httpx2.TransportError:
            time.sleep(0.1)
    raise RuntimeError("functions-framework does not start: pip install 'rollweave[functions]'")


def deliver(setup: Setup, faults: str, hedge_after: float | None = None) -> dict[str, Any]:
    with function_server(setup, faults) as url:
        found = asyncio.run(_deliver(setup, url, hedge_after))
        found["server"] = httpx2.get(url).json()
    return {"faults": faults, **found}


async def _deliver(setup: Setup, url: str, hedge_after: float | None) -> dict[str, Any]:
    call = CallConfig(timeout=setup.timeout, concurrency=setup.concurrency, hedge_after=hedge_after)
    instances = InstancesConfig(memory_gb=0.5, price_per_gb_second=0.00002)
    config = RewardConfig(function=url, name=NAME, call=call, instances=instances)
    scorer, played, meter = Scorer([config], Path(), clock=Clock(), seed=1), trajectories(setup.calls), CallMeter()
    in_turn, failures = asyncio.Semaphore(setup.concurrency), list[str]()

    async def one(trajectory: Trajectory) -> None:
        async with in_turn:
            meter.begin([NAME])
            try:
                await scorer.score(trajectory)
            except Exception as error:  # every kind of failure is counted, and the bar is none
                failures.append(str(error))
            meter.end([NAME])
        meter.add(trajectory.info.pop(CALLS))

    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for trajectory in played:
            tasks.create_task(one(trajectory))
    seconds = time.monotonic() - began
    await scorer.aclose()
    right = sum(one.rewards.get(NAME) == number / 8 for number, one in enumerate(played))
    row = {key.removeprefix(f"function/{NAME}/"): value for key, value in meter.sample().items()}
    return {"seconds": seconds, "right": right, "of": setup.calls, "failures": failures[:3], "metrics": row}


def problems(found: dict[str, Any], setup: Setup) -> list[str]:
    """What of the bar a run misses; none: nothing."""
    row, server = found["metrics"], found["server"]
    tries = {key: value for key, value in row.items() if key.startswith("tries/")}
    checks = {
        f"{found['right']} of {found['of']} rewards are right; {found['failures']}": found["right"] == found["of"],
        "calls": row["calls"] == setup.calls,
        f"tries by end {tries}": sum(tries.values()) == row["calls"] + row["retries"] + row["hedges"],
        "answered": tries["tries/answered"] >= setup.calls,
        f"the server saw {server['keys']} keys": server["keys"] == setup.calls,
        "more tries were counted than made, or fewer": abs(server["tries"] - sum(tries.values())) <= _unseen(tries),
        "more calls under way than allowed": row["in_flight_max"] <= setup.concurrency,
        "cost": abs(row["cost"] - row["function_seconds"] * 0.5 * 0.00002) < 1e-9,
    }
    return [name for name, held in checks.items() if not held]


def _unseen(tries: dict[str, int]) -> int:
    """Tries that may have ended before the server saw them."""
    return Counter(tries)["tries/abandoned"] + Counter(tries)["tries/timeout"] + Counter(tries)["tries/dropped"]
