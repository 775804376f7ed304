"""Every weight store keeps the contract of weight stores."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts.machines import two_machines
from contracts.ray_workers import RayWorkers
from contracts.weight_store import BEHAVIOURS, BUCKET_MB, tensors
from rollweave.weights.file_storage import FileStorage
from rollweave.weights.mooncake_storage import MooncakeStorage
from rollweave.weights.objects import ObjectRemote
from rollweave.weights.ray_store import RayRemote, WeightServer
from rollweave.weights.shared_store import SharedMemoryStore
from rollweave.weights.store import MemoryStore, WeightStore, WeightStoreError

STORES: dict[str, Callable[[Path], WeightStore]] = {
    "memory": lambda folder: MemoryStore(BUCKET_MB),
    "shared-memory": lambda folder: SharedMemoryStore(folder, BUCKET_MB),
    "file": lambda folder: two_machines(folder, ObjectRemote(FileStorage(f"file://{folder}/store"))),
    "file-delta": lambda folder: two_machines(folder, ObjectRemote(FileStorage(f"file://{folder}/s"), True), True),
    "url": lambda folder: two_machines(folder, ObjectRemote(FileStorage(f"memory://{folder.name}"))),
}


@pytest.mark.slow
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
def test_the_store_on_ray_keeps_the_contract(
    behaviour: Callable[[WeightStore], None], delta: bool, ray_workers: RayWorkers, tmp_path: Path
) -> None:
    import ray

    server = ray.remote(WeightServer).options(num_cpus=0).remote(tmp_path / "here")
    behaviour(two_machines(tmp_path, RayRemote(server), delta))


@pytest.mark.slow
def test_weights_that_are_lost_with_their_server_are_said_to_be(ray_workers: RayWorkers, tmp_path: Path) -> None:
    import ray

    server = ray.remote(WeightServer).options(num_cpus=0).remote(tmp_path / "here")
    machines = two_machines(tmp_path, RayRemote(server))
    machines.push(1, tensors())
    ray.kill(server)
    handed: list[str] = []
    with pytest.raises(WeightStoreError, match="the weights are lost with the node of the trainer"):
        machines.pull(1, lambda name, tensor: handed.append(name))
    assert handed == []


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("kind", STORES)
def test_a_weight_store_keeps_the_contract(kind: str, behaviour: Callable[[WeightStore], None], tmp_path: Path) -> None:
    behaviour(STORES[kind](tmp_path))


def why_no_mooncake() -> str | None:
    try:
        import mooncake.store  # noqa: F401
    except ImportError as error:
        return f"Mooncake is not here ({error}); see docs/weights.md"
    return None if shutil.which("mooncake_master") else "there is no mooncake_master on the path"


@pytest.fixture(scope="module")
def mooncake_master() -> Iterator[str]:
    if reason := why_no_mooncake():
        pytest.skip(reason)
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port = some.getsockname()[1]
    master = subprocess.Popen(["mooncake_master", f"--rpc_port={port}", "--metrics_port=0"])
    try:
        for _ in range(100):
            with socket.socket() as some:
                if not some.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)  # until it listens
        yield f"127.0.0.1:{port}"
    finally:
        master.terminate()
        master.wait()


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
def test_the_store_on_mooncake_keeps_the_contract(
    behaviour: Callable[[WeightStore], None], mooncake_master: str, tmp_path: Path
) -> None:
    behaviour(two_machines(tmp_path, ObjectRemote(MooncakeStorage(mooncake_master, tmp_path.name))))
