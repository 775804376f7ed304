"""What happens when workers die, without processes: puppets on the virtual clock, which would find a deadlock."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fleets import fleet_of
from tests.puppets import PuppetEngine, PuppetHost, request

from rollweave.clock import Clock, run_virtual
from rollweave.engines.loop import EngineLoop
from rollweave.engines.protocol import Completion, EngineStats, Sampling, SteppedEngine
from rollweave.errors import EngineGone, WorkerDied
from rollweave.fleet.fleet import COUNTERS, GAUGES, EngineEntry, Fleet, FleetUpdate
from rollweave.fleet.weight_sync import WeightSync
from rollweave.observability.events import MemoryRecorder
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Lease, Report
from rollweave.runtimes import ray_workers
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.layout import EngineSeat
from rollweave.runtimes.ray_clients import Mishaps, Orders, RayEngineClient, RayEngineControl, Restarts, WorkerHandle
from rollweave.runtimes.ray_keepers import Crew, EngineKeeper, HostKeeper
from rollweave.runtimes.ray_nodes import RayNodes
from rollweave.runtimes.ray_workers import EngineWorker
from rollweave.runtimes.resources import ClusterNode, ResourceManager
from rollweave.tasks import Task
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.shared_memory import LOCK, PREFIX, shared_folder, sweep
from rollweave.weights.store import WeightStore

HOME = ClusterNode("home", "here", 8)


async def reachable(worker: WorkerHandle, call: Awaitable[Any]) -> Any:
    return await call


def crew_of(clock: Clock, recorder: MemoryRecorder, fleet: Fleet | None = None) -> Crew:
    """A crew whose workers are all on the driver's machine."""
    resources = ResourceManager(None, recorder, labelled=False, home=HOME.id)
    resources.see([HOME])

    async def look() -> list[ClusterNode]:
        return [HOME]

    nodes = RayNodes(HOME.id, resources, [], Path(), clock, recorder, _no_agent, look)
    return Crew(clock, recorder, Restarts(recorder), fleet if fleet is not None else fleet_of([]), nodes)


def _no_agent(node: ClusterNode) -> WorkerHandle:
    raise AssertionError(f"{node} is not the driver's machine")


# ------------------------------------------------------------------------------------------------- the books


def test_the_run_ends_with_the_cause_after_too_many_deaths_without_a_step() -> None:
    restarts = Restarts(MemoryRecorder())
    for _ in range(4):
        restarts.died(WorkerDied("out of memory", "engine"))
    with pytest.raises(WorkerDied, match="5 times without a completed train step in between, out of memory") as raised:
        restarts.died(WorkerDied("out of memory", "engine"))
    assert raised.value.worker == "engine"


def test_a_train_step_in_between_makes_it_bad_luck() -> None:
    restarts = Restarts(MemoryRecorder())
    for _ in range(12):
        restarts.died(WorkerDied("killed", "engine"))
        restarts.progress()


def test_a_worker_that_does_not_start_is_a_named_wait() -> None:
    async def main(clock: Clock) -> None:
        recorder = MemoryRecorder(clock.now)
        crew = crew_of(clock, recorder)
        never = PuppetEngine()
        never.ready = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        starting = asyncio.ensure_future(crew.ready(cast(WorkerHandle, never)))
        await settle()
        assert [(wait.who, wait.what) for wait in clock.waits()] == [("driver", "engine to start")]
        starting.cancel()

    on_virtual_clock(main)


def test_each_worker_has_its_own_luck() -> None:
    restarts = Restarts(MemoryRecorder())
    for name in 4 * ("engine", "host-0", "host-1"):
        restarts.died(WorkerDied("killed", name))


def test_deaths_and_restarts_are_events() -> None:
    recorder = MemoryRecorder()
    restarts = Restarts(recorder)
    death = WorkerDied("killed", "host-0")
    restarts.died(death)
    restarts.back(death, 1.5)
    assert [(event.name, event.data) for event in recorder.events] == [
        ("worker.died", {"worker": "host-0", "cause": "killed"}),
        ("worker.restarted", {"worker": "host-0", "seconds": 1.5, "cause": "killed"}),
    ]


def test_every_statistic_is_known_as_counter_or_gauge() -> None:
    """A new field is sorted here: what only ever grows is summed over an engine's lives, the rest is not."""
    counted = "steps sampled_tokens prefilled_tokens recomputed_tokens restarted_tokens evictions busy_seconds"
    handed = {"handed_tokens", "handed_bytes", "handover_seconds"}
    assert set(COUNTERS) == {*counted.split(), "prefill_seconds", "recompute_seconds", *handed}
    assert {field.name for field in fields(EngineStats)} == {*COUNTERS, *GAUGES}


# ------------------------------------------------------------------------------------------- an engine's clients


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(40):
        await asyncio.sleep(0)


def on_virtual_clock(main: Callable[[Clock], Awaitable[None]]) -> None:
    async def run(clock: Clock) -> None:
        await main(clock)

    run_virtual(run)


def test_what_a_dead_engine_had_not_answered_fails_and_so_does_what_comes_later() -> None:
    async def main(clock: Clock) -> None:
        worker = PuppetEngine()
        engine = RayEngineClient(cast(WorkerHandle, worker), "host-0.1")
        collecting = asyncio.ensure_future(engine.run())
        answers = [asyncio.ensure_future(engine.generate(request(f"{n}#0"))) for n in range(3)]
        await settle()
        worker.answer("1#0")
        await settle()
        worker.end()
        late = asyncio.ensure_future(engine.generate(request("9#0")))  # said to a dead one
        await settle()
        assert collecting.done() and collecting.exception() is None, "the host goes on"
        later = asyncio.ensure_future(engine.generate(request("10#0")))
        ended = await asyncio.gather(*answers, late, later, return_exceptions=True)
        assert isinstance(ended[1], Completion) and ended[1].id == "1#0"
        assert [isinstance(end, EngineGone) for end in ended] == [True, False, True, True, True]
        engine.abort("0#0")
        engine.release("0")
        await settle()

    on_virtual_clock(main)


@pytest.mark.parametrize(("command", "arguments"), [("prepare", [5]), ("commit", [4]), ("resume", [])])
def test_a_command_that_the_engine_dies_of_fails_at_once(command: str, arguments: list[int]) -> None:
    async def main(clock: Clock) -> None:
        worker = PuppetEngine()
        engine = RayEngineControl(cast(WorkerHandle, worker), reachable)
        await engine.prepare(4)
        worker.stuck.clear()
        doing = asyncio.ensure_future(getattr(engine, command)(*arguments))
        await settle()
        assert not doing.done()
        worker.end()
        with pytest.raises(EngineGone, match="engine died"):
            await doing

    on_virtual_clock(main)


def test_an_update_goes_on_without_an_engine_that_dies_of_it_and_the_successor_catches_up() -> None:
    """The real keeper, fleet and weight sync: the engine dies while it prepares version 2."""

    async def main(clock: Clock) -> None:
        recorder = MemoryRecorder(clock.now)
        crew = crew_of(clock, recorder)
        async with a_kept_engine(clock, crew) as lives, asyncio.TaskGroup() as tasks:
            other = PuppetEngine()
            crew.fleet.join(
                EngineEntry("other/1", RayEngineControl(cast(WorkerHandle, other), crew.nodes.while_reachable))
            )
            weights = WeightSync(PuppetTrainer(), crew.fleet, clock, recorder, timeout=9.0)
            welcoming = tasks.create_task(weights.welcome())
            await weights.publish(1)
            await weights.commit(1)
            lives[0].stuck.clear()
            await weights.publish(2)
            committing = tasks.create_task(weights.commit(2))
            await settle()
            lives[1].stuck.clear()  # the successor is held up too: nothing waits for it
            lives[0].end()
            await settle()
            assert committing.done() and crew.fleet.version == other.version == 2
            states = {id: entry.state for id, entry in crew.fleet.entries.items()}
            assert states == {"engine/1": "gone", "other/1": "serving", "engine/2": "starting"}
            lives[1].stuck.set()
            await settle()
            assert crew.fleet.entries["engine/2"].state == "serving" and lives[1].version == 2
            welcoming.cancel()

    on_virtual_clock(main)


def test_an_engine_that_takes_too_long_to_catch_up_is_ended_and_has_a_successor() -> None:
    """Its process lives, so no call would ever say that it died, and the run would have no engine any more."""

    async def main(clock: Clock) -> None:
        recorder = MemoryRecorder(clock.now)
        crew = crew_of(clock, recorder)
        async with a_kept_engine(clock, crew) as lives, asyncio.TaskGroup() as tasks:
            weights = WeightSync(PuppetTrainer(), crew.fleet, clock, recorder, timeout=9.0)
            welcoming = tasks.create_task(weights.welcome())
            await weights.publish(1)
            await weights.commit(1)
            lives[1].stuck.clear()
            lives[0].end()
            await clock.sleep(10.0)
            assert lives[1].dead.is_set() and crew.fleet.entries["engine/2"].state == "gone"
            assert crew.fleet.entries["engine/3"].state == "serving" and lives[2].version == 1
            first, second = [event.data["cause"] for event in recorder.events if event.name == "worker.died"]
            assert "engine/2 to prepare version 1" in second and "engine/2" not in first, "the cause, not the ending"
            welcoming.cancel()

    on_virtual_clock(main)


class PuppetTrainer:
    async def publish(self, version: int) -> Fingerprint:
        return Fingerprint(version, f"sum of {version}")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not asked of it")


def test_rates_never_go_negative_over_a_death() -> None:
    async def main(clock: Clock) -> None:
        recorder = MemoryRecorder(clock.now)
        crew = crew_of(clock, recorder)
        async with a_kept_engine(clock, crew) as lives:
            lives[0].sampled = 50
            assert (await crew.fleet.look()).totals.sampled_tokens == 50
            lives[0].end()
            await settle()
            assert (await crew.fleet.look()).totals.sampled_tokens == 50
            lives[1].sampled = 7
            assert (await crew.fleet.look()).totals.sampled_tokens == 57

    on_virtual_clock(main)


# ------------------------------------------------------------------------------------------------ the keepers


@asynccontextmanager
async def a_kept_engine(clock: Clock, crew: Crew | None = None, doomed: int = 0) -> Any:
    """A crew with one engine. The first `doomed` successors die while they get ready."""
    recorder = MemoryRecorder(clock.now)
    crew = crew or crew_of(clock, recorder)
    spawned: list[PuppetEngine] = []

    async def spawn(name: str, seat: EngineSeat, spare_for: ClusterNode | None) -> WorkerHandle:
        spawned.append(PuppetEngine())
        if 0 < len(spawned) - 1 <= doomed:
            spawned[-1].end()
        return cast(WorkerHandle, spawned[-1])

    keeper = EngineKeeper(crew, "engine", EngineSeat(1), spawn)
    await keeper.begin()
    await keeper.start()
    task = asyncio.ensure_future(keeper.run())
    await settle()
    try:
        yield spawned
        if task.done():
            task.result()
    finally:
        task.cancel()


def test_a_spare_is_warm_before_it_is_needed() -> None:
    async def main(clock: Clock) -> None:
        async with a_kept_engine(clock) as lives:
            assert [life.calls[0] for life in lives] == ["ready", "warm_up"]
            lives[0].end()
            await settle()
            assert lives[1].calls == ["warm_up", "ready", "run"]
            assert lives[2].calls == ["warm_up"]  # the next spare

    on_virtual_clock(main)


def test_a_successor_that_dies_at_once_is_replaced_too() -> None:
    async def main(clock: Clock) -> None:
        async with a_kept_engine(clock, doomed=3) as lives:
            lives[0].end()
            await settle()
            assert lives[4].calls[-1] == "run"

    on_virtual_clock(main)


def test_an_engine_that_always_dies_ends_the_run() -> None:
    async def main(clock: Clock) -> None:
        with pytest.raises(WorkerDied, match="5 times without a completed train step"):
            async with a_kept_engine(clock, doomed=100) as lives:
                lives[0].end()
                await settle()
        assert len(lives) == 5

    on_virtual_clock(main)


def lease(id: str) -> Lease:
    return Lease(id, 0, 0, 0, Task(id, "world", 0), seed=0, sampling=Sampling(), version=0)


class Stagehands:
    """A crew of one engine and two hosts with two seats each, and what was reported."""

    def __init__(self, clock: Clock) -> None:
        self.recorder = MemoryRecorder(clock.now)
        self.fleet = fleet_of([])
        self.crew = crew_of(clock, self.recorder, self.fleet)
        self.dispatcher = Dispatcher(self.fleet)
        self.reports: list[Report] = []
        self.hosts: dict[str, list[PuppetHost]] = {"host-0": [], "host-1": []}

    async def spawn(self, name: str, client: str, fleet: FleetUpdate) -> WorkerHandle:
        host = PuppetHost(name, client, fleet)
        self.hosts[name].append(host)
        return cast(WorkerHandle, host)

    @asynccontextmanager
    async def at_work(self) -> Any:
        async with a_kept_engine(self.crew.clock, self.crew) as engines:
            keepers = [HostKeeper(self.crew, name, self.spawn, self.dispatcher, 2) for name in self.hosts]
            await asyncio.gather(*(keeper.begin() for keeper in keepers))
            await asyncio.gather(*(keeper.start() for keeper in keepers))
            tasks = [asyncio.ensure_future(keeper.run()) for keeper in keepers]
            await settle()
            yield engines
            for task in tasks:
                task.cancel()

    def submit(self, *ids: str) -> None:
        for id in ids:
            self.dispatcher.submit([lease(id)], lambda _, report: self.reports.append(report))


def test_the_leases_of_a_dead_host_are_reported_and_the_next_one_plays() -> None:
    async def main(clock: Clock) -> None:
        stage = Stagehands(clock)
        async with stage.at_work() as engines:
            stage.submit("a", "b", "c", "d", "e")
            await settle()
            first, other = stage.hosts["host-0"][0], stage.hosts["host-1"][0]
            assert len(first.leases) == len(other.leases) == 2
            first.end()
            await settle()
            assert [(report.attempt, report.host_died) for report in stage.reports] == [
                (id, True) for id in first.leases
            ]
            assert stage.hosts["host-0"][1].leases == ["e"]  # waited for a seat
            assert stage.hosts["host-0"][1].client == "host-0.2"
            assert engines[0].forgotten == ["host-0.1"]
            assert stage.recorder.names().count("worker.restarted") == 1

    on_virtual_clock(main)


def test_the_leases_of_a_dead_host_do_not_wait_for_its_successor() -> None:
    async def main(clock: Clock) -> None:
        stage = Stagehands(clock)
        async with stage.at_work():
            stage.submit("a")
            await settle()
            dead = next(host for (host,) in stage.hosts.values() if host.leases)
            other = next(host for (host,) in stage.hosts.values() if host is not dead)
            never = asyncio.Event()
            PuppetHost.ready, ready = (lambda self: never.wait()), PuppetHost.ready  # type: ignore[method-assign, assignment, return-value]
            try:
                dead.end()
                await settle()
                stage.submit("a again")
                await settle()
            finally:
                PuppetHost.ready = ready  # type: ignore[method-assign]
            assert [report.attempt for report in stage.reports] == ["a"]
            assert other.leases == ["a again"]

    on_virtual_clock(main)


def test_a_host_that_dies_with_its_engine_knows_the_new_one() -> None:
    async def main(clock: Clock) -> None:
        stage = Stagehands(clock)
        async with stage.at_work() as engines:
            engines[0].end()
            stage.hosts["host-0"][0].end()
            await settle()
            assert [stage.hosts[name][-1].engines for name in stage.hosts] == [["engine/2"], ["engine/2"]]

    on_virtual_clock(main)


def test_a_host_that_was_starting_while_an_engine_joined_is_told() -> None:
    async def main(clock: Clock) -> None:
        stage = Stagehands(clock)
        async with stage.at_work() as engines:
            starting = asyncio.Event()
            PuppetHost.ready, ready = (lambda self: starting.wait()), PuppetHost.ready  # type: ignore[method-assign, assignment, return-value]
            stage.hosts["host-1"][0].end()
            await settle()
            PuppetHost.ready = ready  # type: ignore[method-assign]
            engines[0].end()
            await settle()
            assert stage.hosts["host-1"][1].engines == ["engine/1"], "not attached yet"
            starting.set()
            await settle()
            assert stage.hosts["host-1"][1].engines == ["engine/2"]

    on_virtual_clock(main)


def test_an_error_that_is_no_death_ends_the_run_as_it_is() -> None:
    async def main(clock: Clock) -> None:
        class BrokenEngine(PuppetEngine):
            def __init__(self) -> None:
                super().__init__()
                self.name = "broken"

            async def run(self) -> None:
                raise KeyError("a bug")

        stage = Stagehands(clock)
        async with stage.at_work():

            async def spawn(name: str, seat: EngineSeat, spare_for: ClusterNode | None) -> WorkerHandle:
                return cast(WorkerHandle, BrokenEngine())

            keeper = EngineKeeper(stage.crew, "broken", EngineSeat(1), spawn)
            await keeper.begin()
            with pytest.raises(KeyError, match="a bug"):
                await keeper.run()

    on_virtual_clock(main)


def test_who_waits_in_the_hosts_longest_first() -> None:
    async def main(clock: Clock) -> None:
        stage = Stagehands(clock)
        async with stage.at_work():
            for name, seconds in (("host-0", 2.0), ("host-1", 5.0)):
                host_clock = Clock()
                wait = host_clock.wait(f"episode of {name}", "environment step 3")
                wait.__enter__()
                wait.since -= seconds
                stage.hosts[name][0].waits = _waits_of(host_clock)  # type: ignore[attr-defined]
            assert [str(wait) for wait in await stage.crew.waits()] == [
                "episode of host-1 waits for environment step 3 since 5.0 s",
                "episode of host-0 waits for environment step 3 since 2.0 s",
            ]
            stage.hosts["host-0"][0].waits = lambda most: asyncio.sleep(1e9)  # type: ignore[attr-defined]
            assert [wait.who for wait in await stage.crew.waits()] == ["episode of host-1", "host-0"]

    on_virtual_clock(main)


def _waits_of(clock: Clock) -> Any:
    async def waits(most: int) -> Any:
        return clock.waiting(most)

    return waits


# -------------------------------------------------------------------------------------------------- mishaps


def test_what_goes_wrong_where_nobody_waits_is_raised_to_who_does() -> None:
    async def main(clock: Clock) -> None:
        mishaps = Mishaps()
        with mishaps.noticed():
            raise ValueError("the first")
        with mishaps.noticed():
            raise ValueError("a consequence")
        with pytest.raises(ValueError, match="the first"):
            await mishaps.raised()

    on_virtual_clock(main)


class BrokenCore:
    has_work = False

    def add(self, request: Any) -> None:
        raise ValueError(f"cannot add {request.id}")


def test_a_request_the_engine_cannot_take_ends_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Sketch:
        """As much of a blueprint as an engine looks at."""

        job = SimpleNamespace(weights=SimpleNamespace(bucket_mb=1.0))

        async def start_engine(self, store: WeightStore, clock: Clock, **options: Any) -> EngineLoop:
            return EngineLoop(cast(SteppedEngine, BrokenCore()), store, clock)

    async def main(clock: Clock) -> None:
        worker = EngineWorker(cast(Blueprint, Sketch()), tmp_path, tmp_path / "engine.log")
        await worker.ready()
        running = asyncio.ensure_future(worker.run())
        await worker.serve("host-0.1", Orders(requests=[request("7#0")]))
        with pytest.raises(ExceptionGroup) as raised:
            await running
        assert raised.group_contains(ValueError, match="cannot add 7#0")

    monkeypatch.setattr(ray_workers, "_prepare_process", lambda log: None)
    on_virtual_clock(main)


def test_a_worker_whose_engine_dies_dies_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its keeper waits for nothing else."""

    class DeadEngine:
        async def run(self) -> None:
            raise EngineGone("vLLM is gone: its process ended")

    class Sketch:
        job = SimpleNamespace(weights=SimpleNamespace(bucket_mb=1.0))

        async def start_engine(self, store: WeightStore, clock: Clock, **options: Any) -> DeadEngine:
            return DeadEngine()

    class Exited(Exception):
        pass

    def exit(code: int) -> None:
        raise Exited(code)

    async def main(clock: Clock) -> None:
        worker = EngineWorker(cast(Blueprint, Sketch()), tmp_path, tmp_path / "engine.log")
        await worker.ready()
        with pytest.raises(ExceptionGroup) as raised:
            await worker.run()
        assert raised.group_contains(Exited, match="1")

    monkeypatch.setattr(ray_workers, "_prepare_process", lambda log: None)
    monkeypatch.setattr(os, "_exit", exit)
    on_virtual_clock(main)


# -------------------------------------------------------------------------------------------- shared memory


def test_shared_memory_is_gone_with_the_block_and_swept_after_a_kill(tmp_path: Path) -> None:
    with shared_folder(tmp_path) as folder:
        killed, young, busy = (tmp_path / f"{PREFIX}{name}" for name in ("killed", "young", "busy"))
        for other in (killed, young, busy):
            other.mkdir()
            (other / LOCK).touch()
        for old in (folder, killed, busy):
            os.utime(old, (0, 0))
        with (busy / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sweep(tmp_path)
        assert folder.exists() and busy.exists() and young.exists() and not killed.exists()
    assert not folder.exists()
