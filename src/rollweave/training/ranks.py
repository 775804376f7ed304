"""Ranks: the processes that train one policy together, and how they talk (torch.distributed: gloo, on GPUs also NCCL).

Every rank gets the same calls with the same arguments and does its share; rank 0 speaks for all of them. Work that only
rank 0 can do, such as pushing weights, but that needs pieces which lie with the others, is `led` by it: it tells the
others what to do next, in whatever order it needs.

A trainer in a process of its own is rank 0 of 1, and talks to no one.

FSDP2 divides weights, gradients and moments among the ranks; a layer is whole while it computes. Every rank gets the
whole batch and computes all advantages and denominators, but only its own rows. So the gradients of the ranks add up to
those of a single process, whatever row went where.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rollweave.errors import PeerLost, RanksDisagree
from rollweave.policies.forward import TrainedPolicy

T = TypeVar("T")

CONTACT_LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "c10d")
"""How the message of a failed exchange between ranks begins or what it contains; torch has no type for all of them."""


@dataclass(frozen=True, slots=True)
class Ranks:
    rank: int = 0
    size: int = 1

    @property
    def alone(self) -> bool:
        return self.size == 1

    def gathered(self, item: T) -> list[T]:
        """The items of all ranks, by rank."""
        if self.alone:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def agree(self, doing: str, **facts: object) -> None:
        """Refuse to go on if the ranks do not stand at the same place: nothing they compute together would be right."""
        stands = self.gathered(facts)
        if any(stand != stands[0] for stand in stands):
            said = "; ".join(f"rank {rank}: {_said(stand)}" for rank, stand in enumerate(stands))
            raise RanksDisagree(
                f"the ranks of the trainer disagree before {doing}, and nothing was done ({said}): start the whole "
                "trainer again from one checkpoint, with the same files on every rank"
            )

    def led(self, work: Callable[[], T], follow: Callable[[Any], object]) -> T | None:
        """Rank 0 works, and the others carry out each order that it `tell`s them. Returns None but on rank 0.

        What goes wrong with an order is raised when rank 0 has ended, because it may have more orders."""
        if self.rank == 0:
            try:
                return work()
            finally:
                self.tell(None)
        problem: BaseException | None = None
        while (order := self._heard()) is not None:
            try:
                follow(order)
            except Exception as error:  # kept until rank 0 has ended
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def tell(self, order: Any) -> None:
        """Of rank 0, inside `led`. It then does its own part of the order itself."""
        if not self.alone:
            dist.broadcast_object_list([order], src=0)

    def _heard(self) -> Any:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0)
        return heard[0]


ALONE = Ranks()


class Meeting:
    """Where the ranks find each other: rank 0 opens it and keeps it open."""

    def __init__(self, size: int, seconds: float) -> None:
        self._store = _store(0, size, True, seconds)
        self.port: int = self._store.port

    def join(self, size: int, seconds: float, device: str) -> Ranks:
        return _joined(self._store, 0, size, seconds, device)


LOOPBACK = "127.0.0.1"
"""All ranks of a trainer run on one machine."""


def join(port: int, rank: int, size: int, seconds: float, device: str) -> Ranks:
    """Of every rank but 0; waits for the others. An exchange that takes longer than `seconds` fails with PeerLost."""
    return _joined(_store(port, size, False, seconds), rank, size, seconds, device)


def _store(port: int, size: int, opens: bool, seconds: float) -> Any:
    """Where the ranks leave each other their addresses; port 0: one that is free."""
    return dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, port, size, opens, _patience(seconds), wait_for_workers=False
    )


def _joined(store: Any, rank: int, size: int, seconds: float, device: str) -> Ranks:
    if any(name == "lo" for _, name in socket.if_nameindex()):
        # By default gloo takes the address that the machine's name stands for, which in a container may be none.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if device == "cuda":
        torch.cuda.set_device(rank)  # untested on GPU: a rank for each GPU of the machine
    backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_patience(seconds))
    return Ranks(rank, size)


def leave() -> None:
    """Of a process that has joined: it may join again."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def contact() -> Iterator[None]:
    """Inside, an exchange that failed because another rank died, or does not answer in time, is a PeerLost."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistError) or any(mark in str(error) for mark in CONTACT_LOST):
            raise PeerLost(f"another rank of the trainer does not answer: {error}") from error
        raise


def _patience(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _said(facts: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


# ------------------------------------------------------------------------------------- weights that are divided

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


def source(parameter: Tensor) -> Source:
    return lambda: whole(parameter)


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
