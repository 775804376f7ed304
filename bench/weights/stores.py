"""How long a version takes into each store and out of it, beside a plain copy of the same bytes.

Every store has a machine of its own for trainer and engine (two folders in shared memory), so that what would travel
between machines travels here too, over loopback. The memcpy is between two buffers that were used before; so are the
store's, after its first versions.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from rollweave.weights.buckets import Fingerprint, RawTensor
from rollweave.weights.file_storage import FileStorage
from rollweave.weights.mooncake_storage import MooncakeStorage
from rollweave.weights.objects import ObjectRemote
from rollweave.weights.ray_store import RayRemote, WeightServer
from rollweave.weights.relay import RelayStore, Remote
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import WeightStore

BAR = 3.0
"""Times the memcpy, for push and pull of the shared-memory store."""

DELTA_BAR = 0.1
"""Of the bytes, for a patch of bfloat16 weights."""

RATE = 1e-6
"""The learning rate of the delta's case."""

WARM = 2
"""Versions that touch every page for the first time."""

Weights = dict[str, torch.Tensor]


class Machines:
    """A store as the trainer's machine and an engine's machine have it."""

    def __init__(self, here: WeightStore, there: WeightStore) -> None:
        self.here, self.there = here, there

    def settle(self) -> None:
        """Waits until what was pushed is stored."""
        if isinstance(self.here, RelayStore):
            self.here.remote.ready()


@contextmanager
def shared_memory(folder: Path, delta: bool) -> Iterator[Machines]:
    yield Machines(SharedMemoryStore(folder), SharedMemoryStore(folder))


def _relayed(folder: Path, remote: Remote, delta: bool) -> Machines:
    for name in ("here", "there"):
        (folder / name).mkdir()
    here = RelayStore(folder / "here", remote, delta=delta)
    return Machines(here, here.on(folder / "there"))


@contextmanager
def on_ray(folder: Path, delta: bool) -> Iterator[Machines]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=512 * 2**20)
    try:
        server = ray.remote(WeightServer).options(num_cpus=0).remote(folder / "here")
        yield _relayed(folder, RayRemote(server), delta)
    finally:
        ray.shutdown()


@contextmanager
def on_file(folder: Path, delta: bool) -> Iterator[Machines]:
    yield _relayed(folder, ObjectRemote(FileStorage(f"file://{folder}/store"), delta), delta)


@contextmanager
def on_mooncake(folder: Path, delta: bool) -> Iterator[Machines]:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    master = subprocess.Popen(["mooncake_master", f"--rpc_port={port}"], stderr=subprocess.DEVNULL)
    try:
        time.sleep(2.0)
        yield _relayed(folder, ObjectRemote(MooncakeStorage(f"127.0.0.1:{port}", "bench"), delta), delta)
    finally:
        master.terminate()
        master.wait()


STORES = {"shared_memory": shared_memory, "ray": on_ray, "file": on_file, "mooncake": on_mooncake}


def here(name: str) -> bool:
    return name != "mooncake" or shutil.which("mooncake_master") is not None


def measure(name: str, folder: Path, layers: int, versions: int) -> dict[str, Any]:
    """Medians of a store, and of the memcpy measured in turn with it."""
    weights, target = model(layers), Target(model(layers))
    with _store(name, folder) as machines:
        rows = [_update(machines, version, weights, target) for version in range(WARM + versions)][WARM:]
    found = {key: median(row[key] for row in rows) for key in rows[0]}
    ratios = {f"{what}_ratio": found[f"{what}_s"] / found["memcpy_s"] for what in ("push", "pull")}
    met = name != "shared_memory" or max(ratios.values()) <= BAR
    return {"store": name, "megabytes": target.size / 1e6, **found, **ratios, "met": met}


def measure_delta(name: str, folder: Path, layers: int, versions: int) -> dict[str, Any]:
    """What a step at a small learning rate moves, of bfloat16 weights; what is pulled is compared bit by bit."""
    torch.manual_seed(0)
    masters = model(layers)
    shares, seconds = [], []
    with _store(name, folder, delta=True) as machines:
        for version in range(1 + versions):
            for master in masters.values():
                master.sub_(RATE * torch.sign(torch.randn(master.shape)))
            weights = {key: master.to(torch.bfloat16) for key, master in masters.items()}
            pushed = machines.here.push(version, weights)
            machines.settle()
            target = Target(weights)
            began = time.perf_counter()
            found = machines.there.pull(version, target.take)
            seconds.append(time.perf_counter() - began)
            assert found == pushed and target.equals(weights), f"{name}: version {version} is not what was pushed"
            shares.append(found.moved_bytes / target.size)
    share = max(shares[1:])
    return {"store": name, "moved_share": share, "pull_s": median(seconds[1:]), "met": share <= DELTA_BAR}


@contextmanager
def _store(name: str, folder: Path, delta: bool = False) -> Iterator[Machines]:
    place = folder / name
    place.mkdir()
    with ExitStack() as open:
        open.callback(shutil.rmtree, place)
        yield open.enter_context(STORES[name](place, delta))


def _update(machines: Machines, version: int, weights: Weights, target: Target) -> dict[str, float]:
    for tensor in weights.values():  # else what is there already would be recognised, and not travel
        tensor.add_(1e-3)

    def push() -> Fingerprint:
        return machines.here.push(version, weights)

    memcpy = timed(lambda: target.copy(weights))
    pushing = timed(push)
    storing = timed(machines.settle)
    pulling = timed(lambda: machines.there.pull(version, target.take))
    return {"memcpy_s": memcpy, "push_s": pushing, "store_s": storing, "pull_s": pulling}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Target:
    """Where an engine would copy a version: memory that was used before."""

    def __init__(self, like: Mapping[str, torch.Tensor]) -> None:
        self._bytes = {name: np.ones(tensor.nbytes, np.uint8) for name, tensor in like.items()}
        self.size = sum(tensor.nbytes for tensor in like.values())

    def take(self, name: str, tensor: RawTensor) -> None:
        self._bytes[name][...] = tensor.data

    def copy(self, weights: Weights) -> None:
        for name, tensor in weights.items():
            self._bytes[name][...] = RawTensor.of(tensor).data

    def equals(self, weights: Weights) -> bool:
        return all(np.array_equal(self._bytes[name], RawTensor.of(tensor).data) for name, tensor in weights.items())


def model(layers: int) -> Weights:
    """Weights of SmolLM2's shapes: with 30 layers 135M parameters."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (49152, 576)}
    for number in range(layers):
        attention = {"q": (576, 576), "k": (192, 576), "v": (192, 576), "o": (576, 576)}
        mlp = {"gate": (1536, 576), "up": (1536, 576), "down": (576, 1536)}
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": shape for name, shape in attention.items()}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": shape for name, shape in mlp.items()}
    return {name: torch.randn(shape, generator=generator).mul_(0.02) for name, shape in shapes.items()}
