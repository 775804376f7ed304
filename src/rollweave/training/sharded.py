"""Sharded training: FSDP2 divides weights, gradients and moments among the ranks; a layer is whole while it computes.

Every rank gets the whole batch and computes all advantages and denominators, but only its own rows. So the gradients of
the ranks add up to those of a single process, whatever row went where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rollweave.training.policy import TrainedPolicy
from rollweave.training.ranks import Ranks

Source = Callable[[], Tensor]
"""Makes a whole tensor. All ranks call it together."""


def shard(policy: TrainedPolicy, ranks: Ranks, dtype: str, device: str) -> None:
    """Divide a policy among the ranks, in place."""
    mesh = init_device_mesh(device, (ranks.size,))
    # Gathered in the type that is computed with, added up in float32. What comes into a layer keeps its own type.
    half = torch.bfloat16 if dtype == "bfloat16" else None
    precision = MixedPrecisionPolicy(half, torch.float32 if half else None, cast_forward_inputs=False)
    for module in (*policy.model.model.layers, policy):
        # Without gradients too, a policy is back in its shards after each call: the optimiser knows only those.
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
        module.set_gradient_divide_factor(1.0)  # a sum: the rows carry their weight in the whole mini-batch
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor


def whole(tensor: Tensor) -> Tensor:
    """A tensor without its gradient, put together from its shards if it has some; then all ranks must ask for it."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class WholeWeights(Mapping[str, Tensor]):
    """The weights by their Hugging Face names, each made when it is asked for, so that none but that one is whole.

    The other ranks help, inside `Ranks.led`, with `make`."""

    def __init__(self, sources: Mapping[str, Source], ranks: Ranks) -> None:
        self._sources = sources
        self._ranks = ranks

    def __getitem__(self, name: str) -> Tensor:
        source = self._sources[name]
        self._ranks.tell(name)
        return source()

    def make(self, name: str) -> None:
        """Of another rank than 0: do its part of `name`, which rank 0 has asked for."""
        self._sources[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
