"""The proxy's choice among many workers: the least busy of the pool, whatever came and went before."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from rollweave.engines.protocol import Completion, Request, Sampling
from rollweave.fleet.proxy import LLMProxy
from spans import request_of

POOLS = {"a": [0, 2, 4], "b": [1, 3], "any": list(range(6))}


class Counting:
    """An engine that counts the trajectories it was given."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    async def generate(self, request: Request) -> Completion:
        self.held.add(request.trajectory)
        return Completion(request.id, [], "stop")

    def release(self, trajectory: str) -> None:
        self.held.discard(trajectory)


@pytest.mark.parametrize("seed", range(5))
def test_every_trajectory_goes_to_the_least_busy_worker_of_its_pool(seed: int) -> None:
    async def main() -> None:
        rng, engines = Random(seed), [Counting() for _ in range(6)]
        proxy = LLMProxy(engines, POOLS.__getitem__)  # type: ignore[arg-type]
        open_ones: list[str] = []
        for number in range(600):
            if open_ones and rng.random() < 0.45:
                proxy.release(open_ones.pop(rng.randrange(len(open_ones))))
                continue
            tag, id = rng.choice(list(POOLS)), str(number)
            expected = min(POOLS[tag], key=lambda worker: (len(engines[worker].held), worker))
            await proxy.generate(request_of(f"{id}#1", id, [1], 0, Sampling(), tag))
            assert id in engines[expected].held
            open_ones.append(id)

    asyncio.run(main())
