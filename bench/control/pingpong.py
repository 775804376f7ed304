"""The floor: what asyncio itself costs. Pairs of tasks hand a value to and fro; a round trip is a turn."""

from __future__ import annotations

import asyncio

from rollweave.clock import Clock, run_wall


def turns_per_second(pairs: int, turns: int) -> float:
    return run_wall(lambda clock: _run(clock, pairs, max(1, turns // pairs)))


async def _run(clock: Clock, pairs: int, rounds: int) -> float:
    started = clock.now()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(pairs):
            there: asyncio.Queue[int] = asyncio.Queue()
            back: asyncio.Queue[int] = asyncio.Queue()
            tasks.create_task(_ping(there, back, rounds))
            tasks.create_task(_pong(there, back, rounds))
    return pairs * rounds / (clock.now() - started)


async def _ping(there: asyncio.Queue[int], back: asyncio.Queue[int], rounds: int) -> None:
    for number in range(rounds):
        there.put_nowait(number)
        await back.get()


async def _pong(there: asyncio.Queue[int], back: asyncio.Queue[int], rounds: int) -> None:
    for _ in range(rounds):
        back.put_nowait(await there.get())
