"""The costs of a scenario's pools. Where `rollweave profile` has timed this very model on a device, its times are used;
otherwise the roofline.

Everything else about a pool (how many requests fit, how large a cache is) stays as the roofline has it, and so do
other models on the same device. While generation and training overlap on one machine they share its cores; the
profile says how much longer each then takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rollweave.config.cluster import TRAINS, Pool
from rollweave.config.hardware import Contention, Device, EngineTimes, Measured, TrainerTimes, WeightTimes
from rollweave.config.scenario import Scenario
from rollweave.errors import ConfigError
from rollweave.simulation.costs.roofline import EngineCosts
from rollweave.simulation.costs.training import TrainingCosts, weight_path

OVERLAPPED = frozenset({"rollart", "areal", "one_off"})
"""Pipelines in which generation goes on while the trainer works."""


def measured_on(device: Device, model: str) -> Measured | None:
    """What was measured of this model on the device."""
    found = device.measured
    return found if found is not None and found.model == model else None


def measured(scenario: Scenario, pool: Pool) -> Measured | None:
    """What was measured of the scenario's model on this pool's device."""
    return measured_on(scenario.cluster.device(pool), scenario.model)


def contention(scenario: Scenario, pool: Pool) -> Contention:
    """How much longer the pool takes, if it generates or trains while the other one is at work too."""
    found = measured(scenario, pool)
    overlapped = (scenario.pipeline.type in OVERLAPPED or scenario.training.stream) and pool.role != "colocated"
    return found.contention if found and overlapped else Contention()


def engine_costs(scenario: Scenario, pool: Pool) -> EngineCosts:
    model, size = scenario.spec(), pool.tensor_parallel
    costs = EngineCosts(model, scenario.cluster.device(pool), scenario.constants, size)
    costs.slots = pool.slots or costs.slots
    costs.kv_tokens = pool.kv_tokens or costs.kv_tokens - _judge_tokens(scenario, pool)
    if costs.kv_tokens <= 0:
        raise ConfigError(
            f"pool {pool.name}: {model.name} does not fit into {size} x {pool.device} "
            f"({model.weight_bytes / 1e9:.0f} GB of weights): raise its tensor_parallel"
        )
    if found := measured(scenario, pool):
        costs = MeasuredEngine(costs, found.engine, contention(scenario, pool).engine)
    return costs


def _judge_tokens(scenario: Scenario, pool: Pool) -> int:
    """Tokens of the KV cache whose room the layers of a colocated judge take."""
    if not scenario.judge.colocated or pool is not scenario.judge_pool:
        return 0
    kept = (1.0 - scenario.judge.offloaded) * scenario.spec(scenario.judge.model).weight_bytes
    return int(kept / scenario.spec().kv_bytes_per_token)


def training_costs(scenario: Scenario) -> TrainingCosts:
    pools = [pool for pool in scenario.cluster.pools if pool.role in TRAINS]
    if found := measured(scenario, pools[0]):
        count = sum(pool.count for pool in pools)
        return MeasuredTraining(found.trainer, count, contention(scenario, pools[0]).trainer)
    devices = [(scenario.cluster.device(pool), pool.count) for pool in pools]
    return TrainingCosts(scenario.spec(), devices, scenario.constants)


def weight_times(scenario: Scenario) -> WeightTimes:
    trains = next(pool for pool in scenario.cluster.pools if pool.role in TRAINS)
    if found := measured(scenario, trains):
        return found.weights
    path = weight_path(scenario.spec(), scenario.constants, scenario.cluster.cross_cluster_bandwidth)
    return path.times(scenario.weights.transfer)


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
