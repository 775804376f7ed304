"""How long a train step takes, and how long new weights take from the trainer to the engines.

A step takes its floating-point operations over what the devices really reach. Weights go through the store: the
trainer copies them to its host's memory, which it waits for; from there they are pushed once over the slow link, and
every engine pulls them over a fast one, mostly while it generates. The baseline is a broadcast during which all engines
and the trainer stand still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rollweave.config.hardware import Constants, Device, WeightTimes
from rollweave.config.models import ModelSpec
from rollweave.trajectory import Batch


class TrainingCosts:
    def __init__(self, model: ModelSpec, devices: Sequence[tuple[Device, int]], constants: Constants) -> None:
        """`devices`: of each class, how many."""
        self._model = model
        self._constants = constants
        self.flops = sum(
            count * device.tflops * 1e12 * (device.training_efficiency or constants.training_efficiency)
            for device, count in devices
        )

    def seconds(self, batch: Batch) -> float:
        return self.of_lengths([trajectory.length for trajectory in batch.trajectories()])

    def of_lengths(self, lengths: Sequence[int]) -> float:
        """Of a step over trajectories of these lengths, observations included."""
        products = 2.0 * self._model.active * sum(lengths)
        attention = self._model.attention_flops_per_pair * sum(length * length / 2 for length in lengths)
        work = (products + attention) * self._constants.training_passes
        return work / self.flops + self._constants.training_overhead


@dataclass(frozen=True, slots=True)
class WeightPath:
    """Seconds of one update."""

    snapshot: float
    push: float
    pull: float
    """Accumulated: of one engine."""
    exposed: float
    """Of the pull, what the engine stands still for."""
    broadcast: float

    def times(self, transfer: Literal["background", "blocking"]) -> WeightTimes:
        if transfer == "blocking":
            return WeightTimes(publish=0.0, prepare=self.broadcast, commit=0.0)
        hidden = self.push + self.pull - self.exposed
        return WeightTimes(publish=self.snapshot, prepare=hidden, commit=self.exposed)


def weight_path(model: ModelSpec, constants: Constants, push_bandwidth: float | None = None) -> WeightPath:
    gigabytes = model.weight_bytes / 1e9
    pull = gigabytes / constants.pull_bandwidth
    return WeightPath(
        snapshot=gigabytes / constants.snapshot_bandwidth,
        push=gigabytes / (push_bandwidth or constants.push_bandwidth),
        pull=pull,
        exposed=pull * constants.pull_exposed_share,
        broadcast=gigabytes / constants.broadcast_bandwidth,
    )
