"""Building blocks of the presets: pools, tasks, and simulations, each of which is run only once for all presets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rollweave.config.scenario import Scenario
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import simulate

Data = dict[str, Any]


def pool(role: str, device: str, count: int, tensor_parallel: int = 1, tasks: Sequence[str] = ()) -> Data:
    """A pool that is named after its role and device."""
    return {
        "name": f"{role}-{device}",
        "role": role,
        "device": device,
        "count": count,
        "tensor_parallel": tensor_parallel,
        "tasks": list(tasks),
    }


def task(preset: str, **changes: Any) -> Data:
    return {"name": preset, "preset": preset, **changes}


def normal(mean: float, std: float) -> Data:
    return {"type": "normal", "mean": mean, "std": std}


def rollout(groups: int, group_size: int = 8, **more: Any) -> Data:
    return {"groups_per_step": groups, "group_size": group_size, **more}


def measured(pools: Sequence[Data], tasks: Sequence[Data], **scenario: Any) -> SimulationResult:
    """Simulate a scenario. The result is cached, because several presets use the same scenario."""
    data = {"cluster": {"pools": list(pools)}, "workload": {"tasks": list(tasks)}, **scenario}
    return _simulated(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=128)
def _simulated(text: str) -> SimulationResult:
    return simulate(Scenario.model_validate_json(text))


def forget() -> None:
    """Clear the cache, for tests that simulate twice and compare."""
    _simulated.cache_clear()


def series(values: Mapping[Any, float]) -> tuple[tuple[Any, float], ...]:
    """The points of a plot, from a table."""
    return tuple(values.items())
