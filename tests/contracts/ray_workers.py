"""Worker processes on one private Ray, shared by all contracts: starting one takes longer than a whole contract."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollweave.config.job import Job
from rollweave.environments.registry import EnvironmentFactory
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.ray_clients import WorkerHandle
from rollweave.runtimes.ray_group import RankWorker, TrainerGroup
from rollweave.runtimes.ray_workers import EngineWorker, TrainerWorker
from rollweave.weights.shared_store import SharedMemoryStore


class RayWorkers:
    """Engines (one for each `in_flight`) and a trainer of one tiny policy, each started when it is first wanted."""

    def __init__(self, policy: Path, folder: Path) -> None:
        self.policy = policy
        self.store = SharedMemoryStore(folder)
        self._started: dict[str, WorkerHandle] = {}
        self._running: list[Any] = []
        self._group: TrainerGroup | None = None

    def engine(self, in_flight: str, name: str = "engine") -> WorkerHandle:
        """`name`: several engines of one kind."""
        key = f"{name}-{in_flight}"
        if key not in self._started:
            self._started[key] = worker = self._start(EngineWorker, in_flight, key)
            self._running.append(worker.actor.run.remote())
        return self._started[key]

    def trainer(self) -> WorkerHandle:
        """A fresh core in the same process."""
        import ray

        if "trainer" not in self._started:
            self._started["trainer"] = self._start(TrainerWorker, "recompute", "trainer")
        else:
            ray.get(self._started["trainer"].actor.ready.remote())
        return self._started["trainer"]

    def trainer_group(self) -> TrainerGroup:
        """Two ranks; `ready` gives them a fresh core."""
        if self._group is None:
            self._group = self.new_group()
        return self._group

    def new_group(self, rank_timeout: float = 60.0) -> TrainerGroup:
        return TrainerGroup.of([self._rank(rank, 2, rank_timeout) for rank in range(2)])

    def _rank(self, rank: int, size: int, rank_timeout: float) -> WorkerHandle:
        import ray

        log = self.store.folder / f"trainer-{rank}.log"
        blueprint = Blueprint(job("recompute", rank_timeout=rank_timeout), self.policy, EnvironmentFactory({}))
        actor = ray.remote(RankWorker).options(num_cpus=0).remote(blueprint, self.store, rank, size, log)
        return WorkerHandle(actor, log.stem, log)

    def weights(self) -> dict[str, Any]:
        return Blueprint(job("recompute"), self.policy, EnvironmentFactory({})).trainer().weights()

    def _start(self, kind: type, in_flight: str, name: str) -> WorkerHandle:
        import ray

        log = self.store.folder / f"{name}.log"
        blueprint = Blueprint(job(in_flight), self.policy, EnvironmentFactory({}))
        actor = ray.remote(kind).options(num_cpus=0).remote(blueprint, self.store, log)
        ray.get(actor.ready.remote())
        return WorkerHandle(actor, log.stem, log)


def job(in_flight: str, **training: Any) -> Job:
    """Only what engines and trainers look at matters; the policy is given."""
    return Job.model_validate(
        {
            "model": {"type": "tiny"},
            "environment": {"type": "frozen_lake"},
            "pipeline": {"type": "rollart", "alpha": 1, "in_flight": in_flight},
            "training": {"learning_rate": 1e-3, "loss": {"denominator": "behaviour"}, **training},
        }
    )


@contextmanager
def private_ray() -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    try:
        yield
    finally:
        ray.shutdown()
