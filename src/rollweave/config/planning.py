"""The plan file: what is to be trained, and what there is to train it on or to pay for it.

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

from rollweave.config.base import Section
from rollweave.config.cluster import ClusterConfig, Pool
from rollweave.config.hardware import DEVICES, Constants, Device, NonNegative
from rollweave.config.models import MODELS, ModelSpec, catalogue_name
from rollweave.config.scenario import JudgeConfig, SimulatedRollout
from rollweave.config.workload import WorkloadConfig
from rollweave.targets import nearest


class Offer(Section):
    """Devices of one class that may be used."""

    device: str
    """A class of the catalogue, or of `devices`."""
    count: PositiveInt | None = None
    """At most so many; none: as many as the budget pays for."""
    price: NonNegative | None = None
    """US dollars per device and hour; none: the catalogue's."""


class PlanConfig(Section):
    """What to plan. A key that is searched has the job's name for it, and a list of values to consider."""

    renamed: ClassVar[dict[str, str]] = {"alphas": "alpha", "redundancies": "redundant_groups"}
    name: str = "plan"
    seed: int = 0
    model: str = "qwen3-8b"
    """A model of the catalogue, or of `models`; the name it has on the hub will do (Qwen/Qwen3-8B)."""
    models: tuple[ModelSpec, ...] = ()
    workload: WorkloadConfig
    rollout: SimulatedRollout = SimulatedRollout()
    offers: Annotated[tuple[Offer, ...], Field(min_length=1)]
    """What may be rented or is there."""
    devices: tuple[Device, ...] = ()
    """Classes of your own, or measured by `rollweave profile`."""
    budget: PositiveFloat | None = None
    """US dollars per hour for everything."""
    objective: Literal["speed", "cost"] = "speed"
    """`speed`: the most trained tokens per second. `cost`: the most per dollar."""
    alpha: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.0, 1.0, 2.0)
    """Staleness bounds (alpha) to consider; 0 stands for `sync+`."""
    redundant_groups: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.0, 0.25)
    """`rollout.redundant_groups` to consider."""
    tensor_parallel: tuple[PositiveInt, ...] = ()
    """Sizes to consider; none: the three smallest powers of two at which the model fits."""
    reward_pool: Pool | None = None
    """Where judged tasks are scored; it is given, not searched, and comes on top of the budget."""
    judge: JudgeConfig = JudgeConfig()
    constants: Constants = Constants()

    def device(self, name: str) -> Device:
        own = {device.name: device for device in self.devices}
        return own.get(name) or DEVICES[name]

    def price(self, name: str) -> float:
        offer = next(offer for offer in self.offers if offer.device == name)
        return self.device(name).price if offer.price is None else offer.price

    def spec(self) -> ModelSpec:
        own = {model.name: model for model in self.models}
        return own.get(self.model) or MODELS[catalogue_name(self.model)]

    def most(self, name: str) -> int:
        """Devices of a class that could be had at all."""
        offer = next(offer for offer in self.offers if offer.device == name)
        price = self.price(name)
        affordable = int(self.budget / price + 1e-9) if self.budget is not None and price > 0 else None
        return min(count for count in (offer.count, affordable) if count is not None)

    def cluster(self, pools: list[Pool]) -> ClusterConfig:
        extra = [self.reward_pool] if self.reward_pool else []
        return ClusterConfig(pools=(*pools, *extra), devices=self.devices)

    @model_validator(mode="after")
    def _makes_sense(self) -> PlanConfig:
        known = {*DEVICES, *(device.name for device in self.devices)}
        for offer in self.offers:
            if offer.device not in known:
                raise ValueError(f"offers: no device class {offer.device!r}{nearest(offer.device, known)}")
            if offer.count is None and self.budget is None:
                raise ValueError(f"offers: how many {offer.device}? Give it a `count`, or the plan a `budget`")
            if offer.count is None and self.device(offer.device).price == 0 and not offer.price:
                raise ValueError(f"offers: {offer.device} costs nothing, so no budget limits it: give it a `count`")
        models = {*MODELS, *(model.name for model in self.models)}
        if self.model not in models and catalogue_name(self.model) not in models:
            raise ValueError(f"model {self.model!r} is not in the catalogue{nearest(self.model, models)}")
        return self
