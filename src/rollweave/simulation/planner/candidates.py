"""The candidates: every way to split the offered devices that uses what there is, or what the budget pays for.

A cluster that could have more devices of a kind it uses is left out when speed is wanted: more never make a step
longer. Counts go in whole machines where there are many, one by one where there are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from rollweave.config.cluster import Pool, Role
from rollweave.config.planning import Offer, PlanConfig
from rollweave.config.scenario import Scenario
from rollweave.errors import ConfigError
from rollweave.simulation.costs.roofline import EngineCosts

TRAINING_BYTES_PER_PARAMETER = 16
"""Weights and gradients in 16 bits, master copy and two moments in 32, all of it sharded over the training devices."""

FEW = 32
"""Devices up to which they are counted one by one."""

MACHINE = 8
"""Devices of a machine."""


@dataclass(frozen=True, slots=True, order=True)
class Engines:
    """Devices of one class that generate."""

    device: str
    count: int
    tensor_parallel: int

    def __str__(self) -> str:
        return f"{self.count} {self.device} TP {self.tensor_parallel}"


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    train_device: str
    train_count: int
    rollout: tuple[Engines, ...]
    alpha: float
    redundancy: float

    @property
    def devices(self) -> int:
        return self.train_count + sum(engines.count for engines in self.rollout)

    def price(self, plan: PlanConfig) -> float:
        """US dollars per hour."""
        rollout = sum(engines.count * plan.price(engines.device) for engines in self.rollout)
        return self.train_count * plan.price(self.train_device) + rollout

    def pools(self, plan: PlanConfig) -> list[Pool]:
        def pool(name: str, role: Role, device: str, count: int, size: int = 1) -> Pool:
            price = plan.price(device)
            return Pool(name=name, role=role, device=device, count=count, price=price, tensor_parallel=size)

        names = [f"rollout-{each.device.lower()}" for each in self.rollout] if len(self.rollout) > 1 else ["rollout"]
        rollout = [
            pool(name, "rollout", each.device, each.count, each.tensor_parallel)
            for name, each in zip(names, self.rollout, strict=True)
        ]
        return [*rollout, pool("train", "train", self.train_device, self.train_count)]

    def scenario(self, plan: PlanConfig, steps: int, warmup: int) -> Scenario:
        rollout = plan.rollout.model_copy(update={"redundant_groups": self.redundancy})
        return Scenario.model_validate(
            {
                "name": plan.name,
                "seed": plan.seed,
                "training": {"steps": steps},
                "warmup": warmup,
                "model": plan.model,
                "models": plan.models,
                "cluster": plan.cluster(self.pools(plan)),
                "workload": plan.workload,
                "rollout": rollout,
                "pipeline": self.pipeline(),
                "judge": plan.judge,
                "constants": plan.constants,
            }
        )

    def pipeline(self) -> dict[str, Any]:
        return {"type": "rollart", "alpha": self.alpha} if self.alpha else {"type": "sync+"}

    def __str__(self) -> str:
        rollout = " + ".join(f"{e.count} {e.device} (TP {e.tensor_parallel})" for e in self.rollout)
        mode = f"rollart alpha {self.alpha:g}" if self.alpha else "sync+"
        more = f", {self.redundancy:.0%} redundant groups" if self.redundancy else ""
        return f"train {self.train_count} {self.train_device}, rollout {rollout}, {mode}{more}"


def candidates(plan: PlanConfig) -> list[Candidate]:
    """All that are worth a thought. Raises what is wrong with the request if there is none."""
    fitting = {offer.device: _tensor_parallel(plan, offer) for offer in plan.offers}
    if not any(fitting.values()):
        raise ConfigError(_does_not_fit(plan))
    sizes = {device: [size for size in found if size <= plan.most(device)] for device, found in fitting.items()}
    splits = sorted({*_splits(plan, sizes)})
    if not splits:
        raise ConfigError(_too_little(plan, fitting))
    if plan.objective == "speed":
        splits = _with_most_training(splits)
    return [
        Candidate(device, count, rollout, alpha, redundancy)
        for (device, count, rollout), alpha, redundancy in product(splits, plan.alpha, plan.redundant_groups)
    ]


Split = tuple[str, int, tuple[Engines, ...]]


def _splits(plan: PlanConfig, sizes: dict[str, list[int]]) -> Iterator[Split]:
    for offer in plan.offers:
        for count in _counts(plan.most(offer.device)):
            if count >= least_training(plan, offer.device):
                for rollout in _rollouts(plan, sizes, offer.device, count):
                    yield offer.device, count, rollout


def _with_most_training(splits: Iterable[Split]) -> list[Split]:
    """Engines take whole multiples of their size, which may leave devices over: those train."""
    most: dict[tuple[str, tuple[Engines, ...]], int] = {}
    for device, count, rollout in splits:
        most[device, rollout] = max(count, most.get((device, rollout), 0))
    return [(device, count, rollout) for (device, rollout), count in most.items()]


def _rollouts(plan: PlanConfig, sizes: dict[str, list[int]], train: str, taken: int) -> Iterator[tuple[Engines, ...]]:
    """What generates beside `taken` devices that train: of one class, or of two."""
    left = None if plan.budget is None else plan.budget - taken * plan.price(train)
    room = {o.device: plan.most(o.device) - (taken if o.device == train else 0) for o in plan.offers}
    for device in room:
        for count in _shares(plan, _affordable(plan, device, room[device], left)):
            for size in sizes[device]:
                if whole := count // size * size:
                    yield (Engines(device, whole, size),)
    for pair in combinations(room, 2):
        yield from _mixed(plan, sizes, pair, room, left)


def _mixed(
    plan: PlanConfig, sizes: dict[str, list[int]], pair: tuple[str, str], room: dict[str, int], left: float | None
) -> Iterator[tuple[Engines, ...]]:
    """So many of one class, then as many of the other as there are."""
    one, other = pair
    firsts = [_affordable(plan, one, room[one], left)] if left is None else _counts(room[one])
    for first in firsts:
        rest = None if left is None else left - first * plan.price(one)
        second = _affordable(plan, other, room[other], rest)
        for size_one, size_other in product(sizes[one], sizes[other]):
            whole = first // size_one * size_one, second // size_other * size_other
            if all(whole):
                yield Engines(one, whole[0], size_one), Engines(other, whole[1], size_other)


def _affordable(plan: PlanConfig, device: str, room: int, left: float | None) -> int:
    price = plan.price(device)
    return room if left is None or price == 0 else max(0, min(room, int(left / price + 1e-9)))


def _shares(plan: PlanConfig, most: int) -> Iterable[int]:
    """All of them; when dollars count, fewer may do as well."""
    return {most} if plan.objective == "speed" else {most, most * 3 // 4, most // 2, most // 4}


def _counts(most: int) -> Iterable[int]:
    """Devices to consider of a class that has so many."""
    step = 1 if most <= FEW else MACHINE * max(1, most // (16 * MACHINE))
    return range(step, most + 1, step)


def least_training(plan: PlanConfig, device: str) -> int:
    """Devices that hold the model, its gradients and the optimiser's state."""
    room = plan.device(device).memory * plan.constants.memory_utilisation * 1e9
    return max(1, -int(-plan.spec().params * TRAINING_BYTES_PER_PARAMETER // room))


def _tensor_parallel(plan: PlanConfig, offer: Offer) -> list[int]:
    """Sizes at which an engine of this device holds the model and the longest episode, whatever it costs."""
    device = plan.device(offer.device)
    powers = [2**n for n in range(8) if 2**n <= device.devices_per_node]
    fitting = [
        size
        for size in plan.tensor_parallel or powers
        if size <= (offer.count or size)
        and EngineCosts(plan.spec(), device, plan.constants, size).kv_tokens >= plan.rollout.max_context
    ]
    return fitting if plan.tensor_parallel else fitting[:3]


# ------------------------------------------------------------------------------------------------------- refusals


def _does_not_fit(plan: PlanConfig) -> str:
    spec = plan.spec()
    context = spec.kv_bytes_per_token * plan.rollout.max_context / 1e9
    offered = [(plan.device(offer.device), offer.count) for offer in plan.offers]
    most = ", ".join(
        f"{min(device.devices_per_node, count or device.devices_per_node)} x {device.name} of {device.memory:g} GB"
        for device, count in offered
    )
    return (
        f"{plan.name}: {plan.model} does not fit on any offered device: its weights take "
        f"{spec.weight_bytes / 1e9:.0f} GB and an episode of {plan.rollout.max_context} tokens {context:.1f} GB, but "
        f"one engine spans at most {most}. Offer larger devices or more of them, or lower rollout.max_context"
    )


def _too_little(plan: PlanConfig, sizes: dict[str, list[int]]) -> str:
    cheapest = min(
        least_training(plan, train.device) * plan.price(train.device) + sizes[gen.device][0] * plan.price(gen.device)
        for train in plan.offers
        for gen in plan.offers
        if sizes[gen.device]
    )
    needs = ", or ".join(f"{least_training(plan, o.device)} x {o.device}" for o in plan.offers)
    limit = f"a budget of {plan.budget:g} $/h" if plan.budget is not None else "what is offered"
    return (
        f"{plan.name}: {limit} is too little for {plan.model}: training needs {needs} to hold weights, gradients and "
        f"optimiser, and one engine comes on top. The smallest cluster costs {cheapest:.2f} $/h: raise budget or "
        "offers[].count"
    )
