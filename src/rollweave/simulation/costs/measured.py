"""Costs from measurements: where `rollweave profile` has timed this very model on a device, its times are used.

Everything else about a pool (how many requests fit, how large a cache is) stays as the roofline has it, and so do
other models on the same device. While generation and training overlap on one machine they share its cores; the
profile says how much longer each then takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rollweave.config.cluster import TRAINS, Pool
from rollweave.config.hardware import EngineTimes, Measured, TrainerTimes, WeightTimes
from rollweave.config.scenario import Scenario
from rollweave.simulation.costs.roofline import EngineCosts
from rollweave.simulation.costs.training import TrainingCosts, weight_path

OVERLAPPED = frozenset({"rollart", "areal", "one_off"})
"""Pipelines in which generation goes on while the trainer works."""


def measured(scenario: Scenario, pool: Pool) -> Measured | None:
    """What was measured of the scenario's model on this pool's device."""
    found = scenario.cluster.device(pool).measured
    return found if found is not None and found.model == scenario.model else None


def engine_costs(scenario: Scenario, pool: Pool) -> EngineCosts:
    costs = EngineCosts.of_pool(scenario.spec(), scenario.cluster, pool, scenario.constants)
    found = measured(scenario, pool)
    if found is None:
        return costs
    return MeasuredEngine(costs, found.engine, found.contention.engine if overlapped(scenario, pool) else 1.0)


def training_costs(scenario: Scenario) -> TrainingCosts:
    pools = [pool for pool in scenario.cluster.pools if pool.role in TRAINS]
    found = measured(scenario, pools[0])
    if found is None:
        return TrainingCosts(scenario.spec(), scenario.cluster, pools, scenario.constants)
    slower = found.contention.trainer if overlapped(scenario, pools[0]) else 1.0
    return MeasuredTraining(found.trainer, sum(pool.count for pool in pools), slower)


def weight_times(scenario: Scenario) -> WeightTimes:
    trains = next(pool for pool in scenario.cluster.pools if pool.role in TRAINS)
    if found := measured(scenario, trains):
        return found.weights
    path = weight_path(scenario.spec(), scenario.constants, scenario.cluster.cross_cluster_bandwidth)
    return path.times(scenario.weights.transfer)


def overlapped(scenario: Scenario, pool: Pool) -> bool:
    """Whether this pool generates or trains while the other one is at work too."""
    return scenario.pipeline.type in OVERLAPPED and pool.role != "colocated"


class MeasuredEngine(EngineCosts):
    """An engine whose step times are a table; between its batch sizes they lie on a line.

    They were measured on one device: more of them in one engine hold more, and are not taken to be quicker.
    """

    def __init__(self, like: EngineCosts, times: EngineTimes, slower: float = 1.0) -> None:
        super().__init__(like.model, like.device, like.constants, like.tensor_parallel)
        self.slots, self.kv_tokens = like.slots, like.kv_tokens
        self.per_cached_token = times.cached_token * slower
        self.wake = times.wake * slower
        self._times = times
        self._slower = slower

    def fixed(self, batch: int) -> float:
        return interpolated(self._times.batches, self._times.seconds, batch) * self._slower

    def prefill(self, tokens: int, pairs: float, batch: int) -> float:
        return self._times.prefill_token * tokens * self._slower

    def recompute(self, tokens: int, pairs: float) -> float:
        return self._times.prefill_token * tokens * self._slower


class MeasuredTraining(TrainingCosts):
    """A train step: a fixed part, and one for each token, which the devices share."""

    def __init__(self, times: TrainerTimes, devices: int = 1, slower: float = 1.0) -> None:
        self._times = times
        self._devices = devices
        self._slower = slower

    def of_lengths(self, lengths: Sequence[int]) -> float:
        return (self._times.step + self._times.token * sum(lengths) / self._devices) * self._slower


def interpolated(places: Sequence[int], values: Sequence[float], place: float) -> float:
    """On the line between the neighbours; beyond the last, on the line through the last two."""
    if place <= places[0] or len(places) == 1:
        return values[0]
    right = min(bisect_left(places, place), len(places) - 1)
    left = right - 1
    share = (place - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])
