"""The cluster file: it lists pools of devices, says what each pool is used for, and what it costs.

    pools:
      - {name: rollout, device: H20, count: 32, role: rollout, tensor_parallel: 1}
      - {name: train, device: H800, count: 32, role: train}
      - {name: judges, device: serverless, count: 64, role: reward}

`rollweave simulate` and `rollweave train` (`cluster: FILE`) run on it, and `rollweave plan` writes it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section
from rollweave.config.hardware import DEVICES, Device
from rollweave.targets import nearest

Role = Literal["rollout", "train", "colocated", "prefill", "decode", "reward", "environment"]
GENERATES = frozenset({"rollout", "colocated", "prefill", "decode"})
TRAINS = frozenset({"train", "colocated"})


class Slowdown(Section):
    """Lets a device stand for a slower one: each step of its engines takes longer, by waiting and not by computing."""

    prefill: Annotated[float, Field(ge=1.0)] = 1.0
    """How many times as long contexts take."""
    decode: Annotated[float, Field(ge=1.0)] = 1.0
    """How many times as long answers take."""
    exchange_at: PositiveInt | None = None
    """From this version on the two factors are exchanged; none: never."""

    def at(self, version: int) -> tuple[float, float]:
        """The factors of prefill and decode while the engines have this version."""
        exchanged = self.exchange_at is not None and version >= self.exchange_at
        return (self.decode, self.prefill) if exchanged else (self.prefill, self.decode)


class Pool(Section):
    """Devices of one class that do the same work."""

    renamed: ClassVar[dict[str, str]] = {"max_batch": "slots"}
    name: str
    device: str
    """A class of the catalogue (`H20`, `H800`, ...) or of `devices` in the same file."""
    count: PositiveInt
    role: Role
    """`colocated`: rollout and training alternate on it. `prefill` and `decode`: the two halves of a rollout pool.
    `environment`: it costs money, but a simulation never waits for it."""
    tensor_parallel: PositiveInt = 1
    """Number of devices that one engine uses together (rollout only)."""
    price: NonNegative | None = None
    """US dollars per device and hour; none: the price in the catalogue."""
    tasks: tuple[str, ...] = ()
    """Tasks whose trajectories prefer this pool (hardware affinity). The other tasks use the pools without `tasks`."""
    slots: PositiveInt | None = None
    """Requests that an engine runs at once; none: `slots` of the constants."""
    kv_tokens: PositiveInt | None = None
    """Tokens that fit into the KV cache of an engine; none: as many as the memory has room for beside the weights."""
    labels: dict[str, str] = Field(default_factory=dict)
    """What the pool's nodes carry as Ray node labels (`ray start --labels`); none: `pool: NAME`. A private Ray on this
    machine has no labels: there a pool is a number of its cores."""
    slowdown: Slowdown | None = None
    """For tests and comparisons: its engines are slower than the device, by known factors."""

    @property
    def node_labels(self) -> dict[str, str]:
        return self.labels or {"pool": self.name}

    @property
    def workers(self) -> int:
        """The number of engines in the pool."""
        return self.count // self.tensor_parallel


class ClusterConfig(Section):
    """All pools that a job runs on."""

    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    devices: tuple[Device, ...] = ()
    """Device classes of your own, or measured by `rollweave profile`. A name that is also in the catalogue means the
    class given here."""
    cross_cluster_bandwidth: PositiveFloat | None = None
    """GB/s from the trainer to the weight store; none: `push_bandwidth` of the constants."""

    def device(self, pool: Pool) -> Device:
        return DEVICES.with_own(self.devices)[pool.device]

    def price(self, pool: Pool) -> float:
        """The price of the whole pool, in US dollars per hour."""
        each = self.device(pool).price if pool.price is None else pool.price
        return each * pool.count

    def of_role(self, *roles: Role) -> list[Pool]:
        return [pool for pool in self.pools if pool.role in roles]

    @model_validator(mode="after")
    def _check_pools(self) -> ClusterConfig:
        known = DEVICES.with_own(self.devices)
        names = [pool.name for pool in self.pools]
        for pool in self.pools:
            if pool.device not in known:
                raise ValueError(f"pool {pool.name}: no device class {pool.device!r}{nearest(pool.device, known)}")
            if pool.count % pool.tensor_parallel:
                raise ValueError(
                    f"pool {pool.name}: {pool.count} devices cannot be divided into engines of "
                    f"{pool.tensor_parallel} (tensor_parallel)"
                )
            if pool.slowdown is not None and pool.role in ("train", "prefill", "reward", "environment"):
                raise ValueError(
                    f"pool {pool.name}: slowdown is for engines that sample answers, and role: {pool.role} does not: "
                    "remove it"
                )
            if names.count(pool.name) > 1:
                raise ValueError(f"two pools are called {pool.name}: give each a name of its own")
        roles = {pool.role for pool in self.pools}
        if not roles & GENERATES or not roles & TRAINS:
            raise ValueError("a cluster needs a pool that generates (role: rollout) and one that trains (role: train)")
        if ("prefill" in roles) != ("decode" in roles):
            raise ValueError("prefill and decode pools come in pairs: add the other one, or use role: rollout")
        return self
