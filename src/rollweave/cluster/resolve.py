"""The resolver: which workers a role gets from a cluster file, which of them suit a call, and where a function runs.

Decorators declare defaults; the cluster file overrides them. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import ValidationError

from rollweave.cluster.decorators import Declared, ServerlessFunction
from rollweave.config.cluster import ClusterConfig, Pool, Role
from rollweave.config.rewards import RewardConfig
from rollweave.errors import ConfigError
from rollweave.rewards.scorer import NamedReward
from rollweave.targets import load_target, split_scheme
from rollweave.trajectory import Trajectory

WorkerRole = Literal["train", "generate", "reward", "environment"]

POOL_ROLES: dict[WorkerRole, frozenset[Role]] = {
    "train": frozenset({"train", "colocated"}),
    "generate": frozenset({"rollout", "colocated", "prefill", "decode"}),
    "reward": frozenset({"reward"}),
    "environment": frozenset({"environment"}),
}

LOCAL = "local://"


class WorkerSeat(NamedTuple):
    """A worker's place in its cluster."""

    rank: int
    of: int
    """How many workers there are."""
    pool: str
    device: str

    def __str__(self) -> str:
        return f"worker {self.rank} (pool {self.pool}, {self.device})"


class CallChoice(NamedTuple):
    """The workers that suit a call, and why."""

    ranks: tuple[int, ...]
    reason: str


def seats(cluster: ClusterConfig, role: WorkerRole) -> list[WorkerSeat]:
    """One for each engine's worth of devices in the pools that do this work."""
    pools = [pool for pool in cluster.of_role(*POOL_ROLES[role]) if cluster.device(pool).kind != "function"]
    if not pools:
        wanted = " or ".join(sorted(POOL_ROLES[role]))
        raise ConfigError(
            f"cluster: workers of role {role!r} need a pool of role: {wanted}, and the cluster file has none whose "
            "devices run workers: add one"
        )
    places = [pool for pool in pools for _ in range(pool.workers)]
    return [WorkerSeat(rank, len(places), pool.name, pool.device) for rank, pool in enumerate(places)]


def suiting(tag: str, declared: Declared, pools: Sequence[Pool], living: Sequence[WorkerSeat]) -> CallChoice:
    """Those of a pool that names the tag in the cluster file; else those of the declared device class; else any."""
    if named := {pool.name for pool in pools if tag in pool.tasks}:
        preferred = tuple(seat.rank for seat in living if seat.pool in named)
        wish = f"{tag} to pool {', '.join(sorted(named))}: the cluster file names it"
    elif device := declared.hw_affinity.get(tag) or declared.hw_affinity.get("default"):
        preferred = tuple(seat.rank for seat in living if seat.device == device)
        wish = f"{tag} to {device}: hw_affinity"
    else:
        return CallChoice(tuple(seat.rank for seat in living), f"{tag} to any worker: nothing is declared")
    if preferred:
        return CallChoice(preferred, wish)
    return CallChoice(tuple(seat.rank for seat in living), f"{wish}, but no worker is there: any other")


def function_at(function: ServerlessFunction, base: Path) -> Callable[..., Any]:
    """What a worker calls. A `local://` function takes any arguments; the others are rewards: `async` functions of a
    trajectory, called as those of a job are (docs/functions.md)."""
    url, call = function.url, {} if function.token is None else {"token": function.token}
    if url.startswith(LOCAL):
        return cast(Callable[..., Any], load_target(url.removeprefix(LOCAL), base))
    try:
        config = RewardConfig.model_validate({"function": url, "call": call})
    except ValidationError as error:
        why = error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"])
        raise ConfigError(
            f"serverless_url of {function.attribute}: {why}"
        ) from None  # without the URL, which may hold a password
    if not split_scheme(url)[0]:
        raise ConfigError(f"serverless_url {url!r}: it begins with no kind of function: write {LOCAL}{url}")
    reward = NamedReward.load(config, base)

    async def invoke(trajectory: Trajectory) -> float:
        return (await reward(trajectory)).value

    return invoke
