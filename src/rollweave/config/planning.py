"""The plan file: what is to be trained, and which devices or which budget there is for it.

    model: qwen3-8b
    workload: {tasks: [{preset: swe-bench}, {preset: gem-math}]}
    rollout: {groups_per_step: 64, group_size: 8}
    offers: [{device: H800, count: 64}, {device: H20, count: 64}]     # and/or budget: 400 (US dollars per hour)

`rollweave plan` searches which devices train and which generate, how many of them, tensor parallelism, alpha and
redundancy.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section
from rollweave.config.cluster import ClusterConfig, Pool
from rollweave.config.hardware import DEVICES, Constants, Device
from rollweave.config.models import ModelSpec, find_model
from rollweave.config.scenario import JudgeConfig, SimulatedRollout
from rollweave.config.workload import WorkloadConfig
from rollweave.targets import nearest


class Offer(Section):
    """Devices of one class that may be used."""

    device: str
    """A class of the catalogue, or of `devices`."""
    count: PositiveInt | None = None
    """The largest number of devices; none: as many as the budget pays for."""
    price: NonNegative | None = None
    """US dollars per device and hour; none: the price in the catalogue."""


class PlanConfig(Section):
    """The content of a plan file. A key that is searched has the same name as in a job, and a list of values."""

    renamed: ClassVar[dict[str, str]] = {"alphas": "alpha", "redundancies": "redundant_groups"}
    name: str = "plan"
    seed: int = 0
    model: str = "qwen3-8b"
    """A model of the catalogue, also by its name on the hub (Qwen/Qwen3-8B), or of `models`."""
    models: tuple[ModelSpec, ...] = ()
    workload: WorkloadConfig
    rollout: SimulatedRollout = SimulatedRollout()
    offers: Annotated[tuple[Offer, ...], Field(min_length=1)]
    """The devices that are there or may be rented."""
    devices: tuple[Device, ...] = ()
    """Device classes of your own, or measured by `rollweave profile`."""
    budget: PositiveFloat | None = None
    """US dollars per hour for all devices together."""
    objective: Literal["speed", "cost"] = "speed"
    """`speed`: the most trained tokens per second. `cost`: the most trained tokens per dollar."""
    alpha: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.0, 1.0, 2.0)
    """Staleness bounds (alpha) to consider; 0 stands for `sync+`."""
    redundant_groups: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.0, 0.25)
    """`rollout.redundant_groups` to consider."""
    tensor_parallel: tuple[PositiveInt, ...] = ()
    """Sizes to consider; none: the three smallest powers of two at which the model fits."""
    reward_pool: Pool | None = None
    """The pool that scores judged tasks. The search does not change it, and its cost is added to the budget."""
    judge: JudgeConfig = JudgeConfig()
    constants: Constants = Constants()

    def device(self, name: str) -> Device:
        return DEVICES.with_own(self.devices)[name]

    def price(self, name: str) -> float:
        offer = next(offer for offer in self.offers if offer.device == name)
        return self.device(name).price if offer.price is None else offer.price

    def spec(self) -> ModelSpec:
        return find_model(self.model, self.models)

    def most(self, name: str) -> int:
        """The largest number of devices of a class that offers and budget allow."""
        offer = next(offer for offer in self.offers if offer.device == name)
        price = self.price(name)
        affordable = int(self.budget / price + 1e-9) if self.budget is not None and price > 0 else None
        return min(count for count in (offer.count, affordable) if count is not None)

    def cluster(self, pools: list[Pool]) -> ClusterConfig:
        extra = [self.reward_pool] if self.reward_pool else []
        return ClusterConfig(pools=(*pools, *extra), devices=self.devices)

    @model_validator(mode="after")
    def _check_offers(self) -> PlanConfig:
        known = DEVICES.with_own(self.devices)
        for offer in self.offers:
            if offer.device not in known:
                raise ValueError(f"offers: no device class {offer.device!r}{nearest(offer.device, known)}")
            if offer.count is None and self.budget is None:
                raise ValueError(f"offers: how many {offer.device}? Give it a `count`, or the plan a `budget`")
            if offer.count is None and self.price(offer.device) == 0:
                raise ValueError(f"offers: {offer.device} costs nothing, so no budget limits it: give it a `count`")
        find_model(self.model, self.models)
        find_model(self.judge.model, self.models, key="judge.model")
        return self
