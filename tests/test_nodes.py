"""Nodes that fall silent, come back, and carry files: the driver's side, with stand-ins for Ray's actors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from fleets import fleet_of
from puppets import Puppet, PuppetEngine
from rollweave.clock import Clock, run_virtual
from rollweave.config.cluster import ClusterConfig
from rollweave.errors import RollweaveError, WorkerDied
from rollweave.fleet.fleet import Fleet
from rollweave.observability.events import MemoryRecorder
from rollweave.runtimes.layout import EngineSeat
from rollweave.runtimes.ray import Starter
from rollweave.runtimes.ray_clients import Restarts, WorkerHandle
from rollweave.runtimes.ray_keepers import Crew, EngineKeeper
from rollweave.runtimes.ray_nodes import CUT_OFF_SECONDS, SILENT_SECONDS, NodeWorker, RayNodes
from rollweave.runtimes.resources import ClusterNode, Need, ResourceManager
from rollweave.runtimes.travel import Luggage

HOME = ClusterNode("home", "10.0.0.1", 2, {"pool": "train"})
A, B = ClusterNode("a", "10.0.0.2", 2, {"pool": "a"}), ClusterNode("b", "10.0.0.3", 2, {"pool": "b"})
CLUSTER = ClusterConfig.model_validate(
    {
        "pools": (
            {"name": "train", "device": "CPU", "count": 1, "role": "train"},
            {"name": "a", "device": "CPU", "count": 1, "role": "rollout"},
            {"name": "b", "device": "CPU", "count": 1, "role": "rollout"},
        )
    }
)


class PuppetNode(Puppet):
    """A real `NodeWorker` behind a link that a test can cut: a call waits until it is healed."""

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(f"the node {node}", node)
        self.real = NodeWorker()

    def __getattr__(self, method: str) -> Any:
        async def answer(*arguments: Any) -> Any:
            await self.stuck.wait()
            return await getattr(self.real, method)(*arguments)

        return answer


class Site:
    """The nodes of a run: which Ray shows, and which answer."""

    def __init__(self, clock: Clock, logs: Path, luggage: list[Luggage] | None = None) -> None:
        self.recorder = MemoryRecorder(clock.now)
        self.there = [HOME, A, B]
        self.agents: dict[str, PuppetNode] = {}
        resources = ResourceManager(CLUSTER, self.recorder, labelled=True, home=HOME.id)
        resources.see(self.there)
        self.nodes = RayNodes(
            HOME.id, resources, luggage or [], logs, clock, self.recorder, self.start_agent, self.look
        )
        self.fleet = fleet_of([])
        self.crew = Crew(clock, self.recorder, Restarts(self.recorder), self.fleet, self.nodes)
        self.engines: list[PuppetEngine] = []

    async def look(self) -> list[ClusterNode]:
        return list(self.there)

    def start_agent(self, node: ClusterNode) -> WorkerHandle:
        self.agents[node.id] = PuppetNode(node)
        return cast(WorkerHandle, self.agents[node.id])

    async def spawn(self, name: str, seat: EngineSeat, spare_for: ClusterNode | None) -> WorkerHandle:
        node = spare_for
        while node is None:
            binding = self.nodes.resources.bind(Need(name, seat.pool, 1))
            if binding is None:
                self.nodes.changed.clear()
                await self.nodes.changed.wait()
            else:
                node = binding.node
        await self.nodes.prepare(node)
        self.engines.append(PuppetEngine(name, node))
        return cast(WorkerHandle, self.engines[-1])

    def cut(self, *nodes: ClusterNode) -> None:
        for node in nodes:
            self.agents[node.id].stuck.clear()

    def heal(self, *nodes: ClusterNode) -> None:
        for node in nodes:
            self.agents[node.id].stuck.set()

    @asynccontextmanager
    async def at_work(self) -> Any:
        keepers = [EngineKeeper(self.crew, f"{pool}-0", EngineSeat(1, pool=pool), self.spawn) for pool in "ab"]
        for keeper in keepers:
            await keeper.begin()
        tasks = [asyncio.ensure_future(work) for work in (self.nodes.watch(), *(keeper.run() for keeper in keepers))]
        try:
            yield
        finally:
            failed = [task.exception() for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            if failed:
                raise cast(BaseException, failed[0])


def on_site(logs: Path, main: Callable[[Site, Clock], Awaitable[None]]) -> None:
    async def run(clock: Clock) -> None:
        site = Site(clock, logs)
        async with site.at_work():
            await main(site, clock)

    run_virtual(run)


def states(fleet: Fleet) -> dict[str, str]:
    return {id: entry.state for id, entry in fleet.entries.items()}


def test_a_node_that_falls_silent_is_given_up_and_its_engine_works_elsewhere_until_it_is_back(tmp_path: Path) -> None:
    async def main(site: Site, clock: Clock) -> None:
        await clock.sleep(3.0)
        site.cut(B)
        await clock.sleep(SILENT_SECONDS + 3.0)
        assert states(site.fleet)["b-0/1"] == "gone", "work has moved within 15 s"
        assert site.fleet.entries["b-0/2"].control.worker.node is A  # type: ignore[attr-defined]
        bound = site.recorder.named("worker.bound")[-1].data
        assert (bound["worker"], bound["preferred"]) == ("b-0", False) and "fallback to pool a" in str(bound["reason"])
        site.heal(B)
        await clock.sleep(5.0)
        assert states(site.fleet) == {"a-0/1": "serving", "b-0/1": "gone", "b-0/2": "gone", "b-0/3": "serving"}
        assert site.fleet.entries["b-0/3"].control.worker.node is B  # type: ignore[attr-defined]
        assert len(site.recorder.named("node.silent")) == len(site.recorder.named("node.back")) == 1

    on_site(tmp_path, main)


def test_a_short_cut_costs_nothing(tmp_path: Path) -> None:
    async def main(site: Site, clock: Clock) -> None:
        await clock.sleep(3.0)
        site.cut(B)
        await clock.sleep(6.5)
        site.heal(B)
        await clock.sleep(20.0)
        assert states(site.fleet) == {"a-0/1": "serving", "b-0/1": "serving"}
        assert not site.recorder.named("node.silent")

    on_site(tmp_path, main)


def test_a_driver_that_is_cut_off_says_so_and_waits(tmp_path: Path) -> None:
    async def main(site: Site, clock: Clock) -> None:
        await clock.sleep(3.0)
        site.cut(A)
        await clock.sleep(1.5)  # the last answer of one node comes later than that of the other
        site.cut(B)
        await clock.sleep(8.5)
        (said,) = site.recorder.named("driver.cut_off")
        assert said.time < 13.0 and said.data["nodes"] == 2
        await clock.sleep(20.0)
        assert states(site.fleet) == {"a-0/1": "serving", "b-0/1": "serving"}
        site.heal(A, B)
        await clock.sleep(3.0)
        assert site.recorder.named("driver.back") and not site.recorder.named("node.silent")

    on_site(tmp_path, main)


def test_a_driver_that_is_cut_off_for_too_long_ends_with_a_sentence(tmp_path: Path) -> None:
    async def main(site: Site, clock: Clock) -> None:
        await clock.sleep(3.0)
        site.cut(A, B)
        await clock.sleep(CUT_OFF_SECONDS + 10.0)

    with pytest.raises(ExceptionGroup) as ended:
        on_site(tmp_path, main)
    assert ended.group_contains(RollweaveError, match="no contact with any of the 2 other nodes .* --resume")


def test_a_node_that_is_gone_for_good_takes_its_workers_along_and_a_new_one_gets_them_back(tmp_path: Path) -> None:
    async def main(site: Site, clock: Clock) -> None:
        await clock.sleep(3.0)
        site.there = [HOME, A]
        site.agents[B.id].end()
        await clock.sleep(3.0)
        assert states(site.fleet)["b-0/1"] == "gone"
        again = ClusterNode("b2", "10.0.0.3", 2, {"pool": "b"})
        site.there = [HOME, A, again]
        await clock.sleep(5.0)
        serving = [entry for entry in site.fleet.serving() if entry.pool == "b"]
        assert [entry.control.worker.node for entry in serving] == [again]  # type: ignore[attr-defined]

    on_site(tmp_path, main)


def test_deaths_for_which_the_network_is_to_blame_do_not_end_the_run() -> None:
    restarts = Restarts(MemoryRecorder())
    for _ in range(20):
        restarts.died(WorkerDied("out of reach", "b-0", out_of_reach=True))


def test_files_travel_and_logs_come_back(tmp_path: Path) -> None:
    policy, logs = tmp_path / "policy", tmp_path / "logs"
    (policy / "sub").mkdir(parents=True)
    logs.mkdir()
    (policy / "config.json").write_text("{}")
    (policy / "sub" / "empty").touch()
    luggage = [Luggage("policy", policy, (Path("config.json"), Path("sub/empty")))]

    async def main(clock: Clock) -> None:
        site = Site(clock, logs, luggage)
        await site.nodes.prepare(A)
        there = site.nodes.policy(A, policy)
        assert there != policy and (there / "config.json").read_text() == "{}" and (there / "sub/empty").exists()
        assert site.nodes.policy(HOME, policy) == policy
        assert site.nodes.moved_folders(A) == {str(policy): str(there)}
        watching = asyncio.ensure_future(site.nodes.watch())
        log = site.nodes.log(A, "a-0")
        log.write_text("one\n")
        await clock.sleep(2.0)
        with log.open("a") as file:
            file.write("two\n")
        await clock.sleep(2.0)
        assert (logs / "a-0.log").read_text() == "one\ntwo\n"
        watching.cancel()
        carrier = site.nodes.carrier(A)
        checkpoint = tmp_path / "checkpoints" / "step-4"
        carrier.there(checkpoint).mkdir()
        (carrier.there(checkpoint) / "weights").write_bytes(b"w" * 100)
        checkpoint.parent.mkdir()
        await carrier.fetch(checkpoint)
        assert (checkpoint / "weights").read_bytes() == b"w" * 100 and not carrier.there(checkpoint).exists()
        await carrier.send(checkpoint)
        assert (carrier.there(checkpoint) / "weights").read_bytes() == b"w" * 100
        await site.nodes.close()
        assert not there.exists()

    async def run(clock: Clock) -> None:
        await main(clock)

    run_virtual(run)


@pytest.mark.parametrize("failures", [2, 9])
def test_a_node_that_goes_while_files_are_brought_to_it_is_tried_again_and_not_for_ever(
    tmp_path: Path, failures: int
) -> None:
    async def main(clock: Clock) -> ClusterNode:
        site = Site(clock, tmp_path)
        tries = iter(range(failures))

        async def prepare(node: ClusterNode) -> None:
            if next(tries, None) is not None:
                raise WorkerDied(f"{node} is gone", "node")

        site.nodes.prepare = prepare  # type: ignore[method-assign]
        nothing = cast(Any, None)
        starter = Starter(nothing, nothing, site.nodes, clock, tmp_path, tmp_path)
        return await starter._bound(Need("a-0", "a", 1))

    async def run(clock: Clock) -> ClusterNode:
        return await main(clock)

    if failures == 2:
        assert run_virtual(run) is A
    else:
        with pytest.raises(WorkerDied, match="is gone"):
            run_virtual(run)
