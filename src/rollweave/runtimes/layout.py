"""Which worker gets which cores: from the job's cluster file, or, without one, by halves.

A cluster file says what a job runs on, whether it is simulated or trained. Pools of CPU cores are what this runtime can
fill: each engine has `tensor_parallel` cores of its pool, the trainer all cores of its own, divided among its ranks.
What the machine does not have is refused before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from rollweave.config.cluster import GENERATES, TRAINS, ClusterConfig, Pool, Slowdown
from rollweave.config.job import Job, RayRuntime
from rollweave.errors import ConfigError
from rollweave.fleet.fleet import EngineRole
from rollweave.runtimes.blueprint import cores

NOT_HERE = {"reward"}
"""Roles that only a simulation plays today."""


@dataclass(frozen=True, slots=True)
class EngineSeat:
    threads: int
    tasks: tuple[str, ...] = ()
    """Tasks whose trajectories prefer this engine."""
    pool: str = ""
    """Empty: there is no cluster file."""
    device: str = ""
    role: EngineRole = "rollout"
    slowdown: Slowdown | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    engines: tuple[EngineSeat, ...]
    trainer_threads: int
    """Of each rank."""
    colocated: bool
    """Engines and trainer take turns on the same cores."""
    trainer_pool: str = ""
    trainer_ranks: int = 1
    host_pool: str = ""


def layout(job: Job, runtime: RayRuntime) -> Layout:
    if job.cluster is not None:
        return _of_cluster(job.cluster, runtime, job.training.ranks)
    colocated = runtime.placement == "colocated"
    share = cores() if colocated else max(1, cores() // 2)
    ranks = job.training.ranks
    threads = max(1, (runtime.trainer_threads or share) // ranks)
    return Layout((EngineSeat(runtime.engine_threads or share),), threads, colocated, trainer_ranks=ranks)


def _of_cluster(cluster: ClusterConfig, runtime: RayRuntime, ranks: int) -> Layout:
    seats = engine_seats(cluster)
    training = [pool for pool in cluster.pools if pool.role in TRAINS]
    wanted = sum(_cores(cluster, pool) for pool in cluster.pools if pool.role in {*GENERATES, *TRAINS})
    if runtime.address == "local" and wanted > cores():
        raise ConfigError(
            f"cluster: its pools want {wanted} cores and this machine has {cores()}: lower their counts, or put "
            "generation and training on one pool of role: colocated"
        )
    return Layout(
        seats,
        _threads_per_rank(sum(_cores(cluster, pool) for pool in training), ranks, training[0]),
        colocated=any(pool.role == "colocated" for pool in training),
        trainer_pool=training[0].name,
        trainer_ranks=ranks,
        host_pool=next((pool.name for pool in cluster.of_role("environment")), ""),
    )


def _threads_per_rank(cores: int, ranks: int, pool: Pool) -> int:
    if cores < ranks:
        raise ConfigError(
            f"training.ranks is {ranks}, but pool {pool.name} has {cores} cores: lower it, or raise the count of the "
            "pool"
        )
    return cores // ranks


def engine_seats(cluster: ClusterConfig) -> tuple[EngineSeat, ...]:
    """One for each engine of the cluster. Refuses pools that this program cannot fill."""
    for pool in cluster.pools:
        _can_be_filled(cluster, pool)
    generating = [pool for pool in cluster.pools if pool.role in GENERATES]
    return tuple(chain(*([_engine_seat(cluster, pool)] * pool.workers for pool in generating)))


def _engine_seat(cluster: ClusterConfig, pool: Pool) -> EngineSeat:
    role: EngineRole = pool.role if pool.role == "prefill" or pool.role == "decode" else "rollout"
    threads = _cores(cluster, pool) // pool.workers
    return EngineSeat(threads, pool.tasks, pool.name, pool.device, role, pool.slowdown)


def _can_be_filled(cluster: ClusterConfig, pool: Pool) -> None:
    device = cluster.device(pool)
    if pool.role in NOT_HERE:
        raise ConfigError(
            f"cluster: pool {pool.name} has role: {pool.role}, which only `rollweave simulate` plays today"
        )
    if pool.role != "environment" and device.kind != "cpu":
        raise ConfigError(
            f"cluster: pool {pool.name} wants {pool.count} x {pool.device}, but engines and trainers run on CPU cores "
            "today: `rollweave simulate` runs this cluster; to train here, give pools of device: CPU, or plan with a "
            "device that `rollweave profile` measured"
        )


def _cores(cluster: ClusterConfig, pool: Pool) -> int:
    """A measured device is as many cores as it was measured with."""
    measured = cluster.device(pool).measured
    return pool.count * (measured.threads if measured is not None else 1)
