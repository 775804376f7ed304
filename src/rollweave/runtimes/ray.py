"""The Ray runtime: engine, trainer and environment hosts in processes of their own, on one machine or on many.

driver ──leases──▶ hosts ──requests──▶ engine          trainer ──weights──▶ weight store ──▶ engine
       ◀─reports──       ◀─completions─
       ──batches─────────────────────────────────────▶ trainer

`ResourceManager` decides on which node a worker runs; `RayNodes` brings what it needs there, and notices when the node
does not answer. A private Ray on this machine is a cluster of one node.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rollweave.clock import Clock
from rollweave.config.job import RayRuntime
from rollweave.errors import ConfigError, WorkerDied
from rollweave.fleet.colocated import AlternatingTrainer
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import Emitter
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.blueprint import Blueprint, cores
from rollweave.runtimes.layout import EngineSeat, Layout, layout
from rollweave.runtimes.orders import follow_orders
from rollweave.runtimes.ray_clients import RayTrainer, Restarts, WorkerHandle
from rollweave.runtimes.ray_group import TRAINER, RankWorker, TrainerGroup
from rollweave.runtimes.ray_keepers import Crew, EngineTeam, HostKeeper
from rollweave.runtimes.ray_nodes import BEAT_SECONDS, NodeWorker, RayNodes
from rollweave.runtimes.ray_workers import EngineWorker, HostWorker, TrainerWorker
from rollweave.runtimes.resources import ClusterNode, Need, NodeId, ResourceManager
from rollweave.runtimes.stores import close_store, make_store
from rollweave.runtimes.travel import pack_luggage
from rollweave.targets import MOVED_FOLDERS
from rollweave.training.protocol import Trainer
from rollweave.weights.ray_store import WeightServer
from rollweave.weights.relay import RelayStore
from rollweave.weights.shared_memory import shared_folder
from rollweave.weights.store import WeightStore, WeightStoreError

OBJECT_STORE_BYTES = 256 * 2**20
"""Of a private Ray. Batches and completions pass through it; weights do not."""

SPIN_COUNT = "20000"
"""How long an idle thread of torch spins before it sleeps: about 0.2 ms, longer than the pause between two operations.
One that sleeps at once has to be woken for each of them; one that spins for long takes the core from others."""

MOST_FAILURES = 5
"""Of bringing the files of the run to the node of one worker."""

CONNECT_SECONDS = 10.0
"""A cluster that has not answered by then is not there."""


@asynccontextmanager
async def start_ray(
    blueprint: Blueprint,
    runtime: RayRuntime,
    fleet: Fleet,
    dispatcher: Dispatcher,
    clock: Clock,
    logs: Path,
    recorder: Emitter,
) -> AsyncIterator[Trainer]:
    """The workers of a job on Ray: started with the block, gone with it."""
    with shared_folder() as folder, connected(runtime.address):
        places = layout(blueprint.job, runtime)
        nodes = _nodes(blueprint, runtime, logs, clock, recorder)
        crew = Crew(clock, recorder, Restarts(recorder), fleet, nodes)
        dispatcher.ask_waits = crew.waits
        starter = Starter(blueprint, runtime, nodes, clock, logs, folder)
        try:
            trainer = await starter.trainer(places)
            async with asyncio.TaskGroup() as tasks:
                team = EngineTeam(crew, places.engines, starter.engine, tasks)
                await team.begin()
                hosts = _host_keepers(crew, starter, places, dispatcher)
                await asyncio.gather(*(host.begin() for host in hosts))
                await asyncio.gather(crew.ready(trainer), team.start(), *(host.start() for host in hosts))
                team.run()
                watching = [host.run() for host in hosts]
                watching.append(follow_orders(logs.parent, team.scale, clock))
                if runtime.address != "local":
                    watching.append(nodes.watch())
                running = [tasks.create_task(work) for work in watching]
                client = _trainer_client(trainer, crew, starter, places)
                yield AlternatingTrainer(client, fleet, blueprint.job.sleep) if places.colocated else client
                for task in running:
                    task.cancel()
                team.stop()
        finally:
            for store in starter.stores.values():
                close_store(store)
            await nodes.close()


def _host_keepers(crew: Crew, starter: Starter, places: Layout, dispatcher: Dispatcher) -> list[HostKeeper]:
    hosts = starter.runtime.hosts
    capacity = -(-starter.blueprint.job.rollout.slots // hosts)
    spawn = partial(starter.host, places)
    return [HostKeeper(crew, f"host-{number}", spawn, dispatcher, capacity) for number in range(hosts)]


def _trainer_client(trainer: WorkerHandle, crew: Crew, starter: Starter, places: Layout) -> RayTrainer:
    async def spawn() -> WorkerHandle:
        another = await starter.trainer(places)
        await crew.ready(another)
        return another

    nodes, deadlines = crew.nodes, starter.blueprint.job.rollout.deadlines
    return RayTrainer(trainer, crew.clock, deadlines, crew.restarts, nodes.carrier, nodes.while_reachable, spawn)


def _nodes(blueprint: Blueprint, runtime: RayRuntime, logs: Path, clock: Clock, recorder: Emitter) -> RayNodes:
    import ray

    home: str = ray.get_runtime_context().get_node_id()
    labelled = runtime.address != "local"
    resources = ResourceManager(blueprint.job.cluster, recorder, labelled, home)
    resources.see(live_nodes() if labelled else [ClusterNode(home, "this machine", cores())])
    resources.check()
    luggage = pack_luggage(blueprint.job, blueprint.policy) if labelled else []
    return RayNodes(
        home, resources, luggage, logs, clock, recorder, _start_agent, partial(asyncio.to_thread, live_nodes)
    )


def live_nodes() -> list[ClusterNode]:
    """The nodes of the cluster that this process is connected to."""
    import ray

    return [
        ClusterNode(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"].get("CPU", 0)), _own_labels(node))
        for node in ray.nodes()
        if node["Alive"]
    ]


def _own_labels(node: dict[str, Any]) -> dict[str, str]:
    """The labels that its owner gave it; Ray adds some of its own."""
    return {key: value for key, value in node.get("Labels", {}).items() if not key.startswith("ray.io/")}


def _start_agent(node: ClusterNode) -> WorkerHandle:
    return WorkerHandle(actor_on(NodeWorker, node, 0, {}).remote(), f"the node {node}", Path(), node)


def actor_on(kind: type, node: ClusterNode, reserved: int, environment: dict[str, str]) -> Any:
    """A class as an actor on a node. What a worker reserves there is not given to other users of the cluster."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(kind).options(
        num_cpus=reserved, scheduling_strategy=strategy, runtime_env={"env_vars": environment}
    )


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts the workers of a job, each on the node that it is bound to."""

    blueprint: Blueprint
    runtime: RayRuntime
    nodes: RayNodes
    clock: Clock
    logs: Path
    folder: Path
    """In the shared memory of this machine."""
    stores: dict[NodeId, WeightStore] = field(default_factory=dict)
    """The one weight store, with the node that the trainer began on."""

    async def trainer(self, places: Layout) -> WorkerHandle:
        ranks, threads = places.trainer_ranks, places.trainer_threads
        reserved = 0 if places.colocated else threads
        node = await self._bound(Need(TRAINER, places.trainer_pool, reserved * ranks if places.trainer_pool else 0))
        self._keep_weights_on(node)
        store = self._store_on(node)
        if ranks == 1:
            return self._start(TrainerWorker, TRAINER, node, threads, store, reserved=reserved)
        return TrainerGroup.of(
            [
                self._start(RankWorker, name, node, threads, store, rank, ranks, reserved=reserved)
                for rank, name in enumerate([TRAINER, *(f"{TRAINER}-{rank}" for rank in range(1, ranks))])
            ]
        )

    async def engine(self, name: str, seat: EngineSeat, spare_for: ClusterNode | None = None) -> WorkerHandle:
        """`spare_for`: on this node, where its predecessor still works, and holds the cores."""
        slow = replace(self, blueprint=replace(self.blueprint, slowdown=seat.slowdown))
        if spare_for is not None:
            return slow._start(EngineWorker, name, spare_for, seat.threads, self._store_on(spare_for), reserved=0)
        node = await self._bound(Need(name, seat.pool, seat.threads if seat.pool else 0))
        return slow._start(EngineWorker, name, node, seat.threads, self._store_on(node), reserved=seat.threads)

    async def host(self, places: Layout, name: str, *arguments: Any) -> WorkerHandle:
        node = await self._bound(Need(name, places.host_pool))
        return self._start(HostWorker, name, node, 1, *arguments)

    def _keep_weights_on(self, trainer: ClusterNode) -> None:
        """Make the one store, where the trainer is. It outlives the trainer, whose successor finds it there."""
        if not self.stores:
            self.stores[trainer.id] = self._store(trainer)
        elif self.blueprint.job.weight_store == "ray" and trainer.id not in self.stores:
            raise WeightStoreError(
                f"the trainer had to move to {trainer}, and engines fetch weights from where it was: go on with "
                "--resume, or set weights.store=file, whose weights no machine takes with it"
            )

    def _store(self, trainer: ClusterNode) -> WeightStore:
        memory = self.nodes.memory(trainer, self.folder)
        return make_store(self.blueprint.job, memory, lambda: actor_on(WeightServer, trainer, 0, {}).remote(memory))

    def _store_on(self, node: ClusterNode) -> WeightStore:
        """The store as the workers of a node have it."""
        (store,) = self.stores.values()
        return store.on(self.nodes.memory(node, self.folder)) if isinstance(store, RelayStore) else store

    async def _bound(self, need: Need) -> ClusterNode:
        """Bind a worker to a node that has what it needs; waits for one. A node that goes while the files of the run
        are brought to it is replaced by another, a limited number of times: it may be the files."""
        failures = 0
        while True:
            while (binding := self.nodes.resources.bind(need)) is None:
                with self.clock.wait("driver", f"a node with room for {need.worker} (pool {need.pool})"):
                    self.nodes.changed.clear()
                    await self.nodes.changed.wait()
            try:
                await self.nodes.prepare(binding.node)
                return binding.node
            except WorkerDied:
                failures += 1
                if failures == MOST_FAILURES:
                    raise
            await self.clock.sleep(BEAT_SECONDS)

    def _start(
        self, kind: type, name: str, node: ClusterNode, threads: int, *arguments: Any, reserved: int = 0
    ) -> WorkerHandle:
        """Start a worker. The caller awaits its `run`, if it has one: that call raises what goes wrong in it."""
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "GOMP_SPINCOUNT": SPIN_COUNT,
            MOVED_FOLDERS: json.dumps(self.nodes.moved_folders(node)),
        }
        actor = actor_on(kind, node, 0 if self.runtime.address == "local" else reserved, environment)
        blueprint = replace(self.blueprint, policy=self.nodes.policy(node, self.blueprint.policy))
        log = self.nodes.log(node, name)
        here = self.logs.absolute() / f"{name}.log"
        return WorkerHandle(actor.remote(blueprint, *arguments, log), name, here, node)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Inside, this process is connected to a Ray cluster; `local`: to a private one, which ends with the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray would announce a dead worker itself, at length, in the middle of the view (read when it is imported).
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    # What goes wrong in a call without an answer is noticed (`Mishaps`); a call to one that just died is said again.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    # Workers compute; at Ray's niceness of 15 each step of theirs would wait for whatever else wants a core.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Our workers have environments of their own, which no process that was started in advance has.
    os.environ.setdefault("RAY_enable_worker_prestart", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        _knock(address)
    except OSError as error:
        raise ConfigError(
            f"runtime.address: no Ray cluster answers at {address!r} ({error}); start one with `ray start --head`, or "
            "set runtime.address=local for a private one"
        ) from error
    try:
        ray.init(address=address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"runtime.address: the Ray cluster at {address!r} does not let this process in ({error}): set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's token (`ray get-auth-token` on its head), and use "
            "the same versions of Ray and Python as its nodes"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ask whether the address answers at all: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
