"""How long a train step takes: its floating-point operations over what the devices really reach."""

from __future__ import annotations

from collections.abc import Sequence

from rollweave.config.cluster import ClusterConfig, Pool
from rollweave.config.constants import Constants
from rollweave.config.models import ModelSpec
from rollweave.trajectory import Batch


class TrainingCosts:
    def __init__(self, model: ModelSpec, cluster: ClusterConfig, pools: Sequence[Pool], constants: Constants) -> None:
        self._model = model
        self._constants = constants
        self.flops = sum(
            pool.count
            * cluster.device(pool).tflops
            * 1e12
            * (cluster.device(pool).training_efficiency or constants.training_efficiency)
            for pool in pools
        )

    def seconds(self, batch: Batch) -> float:
        return self.of_lengths([trajectory.length for trajectory in batch.trajectories()])

    def of_lengths(self, lengths: Sequence[int]) -> float:
        """Of a step over trajectories of these lengths, observations included."""
        products = 2.0 * self._model.active * sum(lengths)
        attention = self._model.attention_flops_per_pair * sum(length * length / 2 for length in lengths)
        work = (products + attention) * self._constants.training_passes
        return work / self.flops + self._constants.training_overhead
