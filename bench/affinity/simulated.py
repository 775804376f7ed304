"""Affinity in simulation: `auto` against every declared mapping and against single pools of equal cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rollweave.config.scenario import Scenario
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
TWO_DEVICES = ROOT / "recipes" / "simulate" / "two_devices.yaml"

Data = dict[str, Any]

SCALE = 4
"""All counts of the paper are divided by it, as in `rollweave experiments`."""

WARMUP, STEPS = 4, 16

FINALISTS = 4
"""Mappings that are run with every seed: the best of all, which are run with the first."""

PAPER = {"8B": (1.68, "1.12-1.37"), "14B": (1.34, "1.12-1.37"), "32B": (1.30, "1.12-1.37")}
"""RollArt, R1: the mix against H20 only, and against H800 only."""

OF_BEST, OF_SINGLE = 0.98, 1.10
"""The bars: of the best declared mapping, and of each single pool of equal cost."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on the paper's pools."""

    model: str
    parallel: int

    @property
    def tasks(self) -> list[str]:
        names = ["webshop", "frozen-lake", "gem-math", "gem-game"]
        return [*names, "swe-bench"] if self.model == "32B" else names

    def scenario(self, pools: Sequence[Data], seed: int, **rollout: str) -> Data:
        train = {"name": "train", "role": "train", "device": "H800", "count": 32 // SCALE}
        return {
            "model": f"qwen3-{self.model.lower()}",
            "seed": seed,
            "warmup": WARMUP,
            "cluster": {"pools": [*pools, train]},
            "workload": {"tasks": [{"name": name, "preset": name} for name in self.tasks]},
            "rollout": {"groups_per_step": 64 // SCALE, "group_size": 8, **rollout},
            "training": {"steps": STEPS},
        }

    def pool(self, device: str, count: int, tasks: Sequence[str] = ()) -> Data:
        size = {"count": count // SCALE, "tensor_parallel": self.parallel}
        return {"name": device, "role": "rollout", "device": device, **size, "tasks": list(tasks)}

    def mixed(self, mapping: Sequence[str] = ()) -> list[Data]:
        """64 H800 and 24 H20. `mapping`: the device of each task; none: it is left to the run."""
        mine = {
            device: [name for name, place in zip(self.tasks, mapping, strict=False) if place == device]
            for device in ("H800", "H20")
        }
        return [self.pool("H800", 64, mine["H800"]), self.pool("H20", 24, mine["H20"])]

    def mappings(self) -> Iterator[tuple[str, ...]]:
        yield from product(("H800", "H20"), repeat=len(self.tasks))


CASES = (Case("8B", 1), Case("14B", 2), Case("32B", 2))


def run(data: Data) -> SimulationResult:
    return simulate(Scenario.model_validate_json(json.dumps(data)))


def measure(case: Case, seeds: Sequence[int]) -> Data:
    """Tokens per second, the mean over seeds, of `auto`, the best mappings, and the single pools."""

    def throughput(pools: Sequence[Data], some: Sequence[int] = seeds, **rollout: str) -> float:
        return fmean(run(case.scenario(pools, seed, **rollout)).tokens_per_second for seed in some)

    automatic = [run(case.scenario(case.mixed(), seed)) for seed in seeds]
    auto = fmean(result.tokens_per_second for result in automatic)
    tried = {mapping: throughput(case.mixed(mapping), seeds[:1]) for mapping in case.mappings()}
    finalists = sorted(tried, key=lambda mapping: -tried[mapping])[:FINALISTS]
    declared = {mapping: throughput(case.mixed(mapping)) for mapping in finalists}
    best = max(declared, key=lambda mapping: declared[mapping])
    return {
        "model": case.model,
        "tasks": case.tasks,
        "auto": auto,
        "best_declared": declared[best],
        "best_mapping": ",".join(best),
        "worst_declared": min(tried.values()),
        "least_held": throughput(case.mixed(), affinity="least_held"),
        "of_best": auto / declared[best],
        "met": auto >= OF_BEST * declared[best],
        "to_h20_only": auto / throughput([case.pool("H20", 208)]),
        "to_h800_only": auto / throughput([case.pool("H800", 72)]),
        "bottleneck": bottleneck(automatic[0]),
        "served": automatic[0].served,
    }


def bottleneck(result: SimulationResult) -> str:
    """What a step waits for."""
    train = next(pool for pool in result.pools if pool.role == "train")
    if train.busy_share > 0.9:
        return f"the trainer ({train.busy_share:.0%} busy)"
    busy = ", ".join(f"{pool.name} {pool.busy_share:.0%}" for pool in result.pools)
    return f"rollout, the longest episode {result.longest_trajectory_seconds:,.0f} s ({busy} busy)"


# ------------------------------------------------------------------------------------------------- two own devices


def two_devices(seeds: Sequence[int], steps: int | None = None) -> Data:
    """The committed scenario beside single pools of equal cost, and with the figures of the devices exchanged."""
    scenario = yaml.safe_load(TWO_DEVICES.read_text(encoding="utf-8"))
    if steps is not None:
        scenario["training"]["steps"] = steps
    mixed = [run({**scenario, "seed": seed}) for seed in seeds]
    auto = fmean(result.tokens_per_second for result in mixed)
    singles = {
        name: fmean(run({**_single(scenario, name), "seed": seed}).tokens_per_second for seed in seeds)
        for name in ("compute", "stream")
    }
    exchanged = run({**_exchanged(scenario), "seed": seeds[0]})
    return {
        "auto": auto,
        "singles": singles,
        "ratios": {name: auto / single for name, single in singles.items()},
        "bottleneck": bottleneck(mixed[0]),
        "served": mixed[0].served,
        "served_exchanged": exchanged.served,
        "met": all(auto >= OF_SINGLE * single for single in singles.values())
        and _favourites(mixed[0]) == {"reading": "compute", "writing": "stream"}
        and _favourites(exchanged) == {"reading": "stream", "writing": "compute"},
    }


def _favourites(result: SimulationResult) -> dict[str, str]:
    return {task: max(shares, key=lambda pool: shares[pool]) for task, shares in result.served.items()}


def _single(scenario: Data, device: str) -> Data:
    """All rollout money for one device."""
    cluster = scenario["cluster"]
    train = next(pool for pool in cluster["pools"] if pool["role"] == "train")
    pools = [{"name": device, "device": device, "count": 16, "role": "rollout"}, train]
    return {**scenario, "cluster": {**cluster, "pools": pools}}


def _exchanged(scenario: Data) -> Data:
    """The same pools, but each device has the other's figures."""
    cluster = scenario["cluster"]
    one, other = cluster["devices"]
    return {
        **scenario,
        "cluster": {**cluster, "devices": [{**one, "name": other["name"]}, {**other, "name": one["name"]}]},
    }
