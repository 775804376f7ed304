"""Every weight store keeps the contract of weight stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.ray_workers import RayWorkers
from contracts.weight_store import BEHAVIOURS, BUCKET_MB
from rollweave.weights.ray_store import RayStore, WeightIndex
from rollweave.weights.store import MemoryStore, SharedMemoryStore, WeightStore

STORES: dict[str, Callable[[Path], WeightStore]] = {
    "memory": lambda folder: MemoryStore(BUCKET_MB),
    "shared-memory": lambda folder: SharedMemoryStore(folder, BUCKET_MB),
}


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
def test_the_store_on_ray_keeps_the_contract(behaviour: Callable[[WeightStore], None], ray_workers: RayWorkers) -> None:
    import ray

    behaviour(RayStore(ray.remote(WeightIndex).options(num_cpus=0).remote(), BUCKET_MB))


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_a_weight_store_keeps_the_contract(kind: str, behaviour: Callable[[WeightStore], None], tmp_path: Path) -> None:
    behaviour(STORES[kind](tmp_path))
