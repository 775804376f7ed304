"""Environments in processes of their own: real children that hang, crash and raise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.world.durations import constant
from tests.world.engine import SimulatedEngine
from tests.world.environment import ByteDialogue, StepRewards

from fleets import proxy_of
from isolation_worlds import Counter, Forgetful, HangsForOne, Liar, Slow
from rollweave.clock import Clock, run_wall
from rollweave.config.control import Deadlines, RolloutConfig
from rollweave.engines.protocol import Sampling
from rollweave.environments.isolation import EnvironmentPool, IsolatedEnvironment
from rollweave.environments.protocol import StepResult
from rollweave.environments.registry import EnvironmentFactory, maker
from rollweave.errors import ConfigError, EnvironmentFailed
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.host import EnvHost
from rollweave.rollout.link import Lease, Report
from rollweave.rollout.manager import Stage
from rollweave.tasks import Task
from rollweave.trajectory import Outcome

FACTORY = EnvironmentFactory({world.__name__: maker(world) for world in (Counter, Forgetful, Liar, Slow)})


def task(world: type = Counter) -> Task:
    return Task("t", world.__name__, 0)


@contextlib.asynccontextmanager
async def pool_of(per_process: int) -> AsyncIterator[EnvironmentPool]:
    pool = EnvironmentPool(FACTORY, per_process)
    try:
        yield pool
    finally:
        await pool.close()


async def until_written(fifo: Path) -> None:
    """Returns once the FIFO has been written to."""
    loop, written = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    loop.add_reader(descriptor, written.set)
    await written.wait()
    loop.remove_reader(descriptor)
    os.close(descriptor)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "hangs")
    return tmp_path / "hangs"


async def give_up_on_a_hanging_step(environment: IsolatedEnvironment, fifo: Path) -> None:
    """What a manager does at its deadline: cancel the call. But only once it certainly hangs."""
    async with asyncio.TaskGroup() as group:
        call = group.create_task(environment.step(f"hang {fifo}"))
        await until_written(fifo)
        call.cancel()


def pid(result: StepResult) -> int:
    return int(result.info["pid"])


def test_a_hung_environment_is_killed_and_its_sibling_goes_on(fifo: Path) -> None:
    async def run() -> None:
        async with pool_of(2) as pool:
            hung, sibling = pool(task()), pool(task())
            await hung.reset(1, {})
            assert await sibling.reset(10, {}) == "10"
            before = await sibling.step("5")
            await give_up_on_a_hanging_step(hung, fifo)
            after = await sibling.step("7")
            assert (after.observation, after.reward) == ("22", 22.0)
            assert pid(after) != pid(before)
            with pytest.raises(ProcessLookupError):
                os.kill(pid(before), 0)
            assert (pool.killed, pool.rebuilt, pool.lost) == (1, 1, 0)
            with pytest.raises(EnvironmentFailed, match="call reset first"):
                await hung.step("1")
            assert await hung.reset(3, {}) == "3"  # a fresh episode is welcome

    asyncio.run(run())


def test_a_sibling_waiting_behind_the_hung_call_gets_its_answer(fifo: Path) -> None:
    async def run() -> None:
        async with pool_of(2) as pool:
            hung, sibling = pool(task()), pool(task())
            await hung.reset(1, {})
            await sibling.reset(10, {})
            async with asyncio.TaskGroup() as group:
                call = group.create_task(hung.step(f"hang {fifo}"))
                await until_written(fifo)
                waiting = group.create_task(sibling.step("5"))
                await asyncio.sleep(0)  # it has asked, and the process will never answer
                call.cancel()
            assert waiting.result().observation == "15"
            assert pool.rebuilt == 1

    asyncio.run(run())


def test_a_sibling_that_cannot_be_replayed_fails_and_is_counted(fifo: Path) -> None:
    async def run() -> None:
        async with pool_of(2) as pool:
            hung, sibling = pool(task()), pool(task(Forgetful))
            await hung.reset(1, {})
            await sibling.reset(10, {})
            await give_up_on_a_hanging_step(hung, fifo)
            with pytest.raises(EnvironmentFailed, match="set `deterministic = True`"):
                await sibling.step("5")
            assert (pool.lost, pool.rebuilt) == (1, 0)
            assert await sibling.reset(11, {}) == "11"

    asyncio.run(run())


def test_a_false_claim_to_be_deterministic_is_found_out(fifo: Path) -> None:
    async def run() -> None:
        async with pool_of(2) as pool:
            hung, liar = pool(task()), pool(task(Liar))
            await hung.reset(1, {})
            await liar.reset(1, {})
            await give_up_on_a_hanging_step(hung, fifo)
            with pytest.raises(EnvironmentFailed, match="declares itself deterministic, but reset"):
                await liar.step("5")

    asyncio.run(run())


@pytest.mark.parametrize(("order", "how"), [("exit 3", "with exit code 3"), ("crash", "by SIGSEGV")])
def test_a_dying_process_fails_who_killed_it_and_nobody_else(order: str, how: str) -> None:
    async def run() -> None:
        async with pool_of(3) as pool:
            dying, waiting, resting = (pool(task()) for _ in range(3))
            for environment in (dying, waiting, resting):
                await environment.reset(1, {})
            died, answered = await asyncio.gather(dying.step(order), waiting.step("1"), return_exceptions=True)
            assert isinstance(died, EnvironmentFailed) and how in str(died)
            assert isinstance(answered, StepResult) and answered.observation == "2"
            assert (await resting.step("4")).observation == "5"
            assert (pool.killed, pool.rebuilt, pool.lost) == (0, 2, 0)
            with pytest.raises(EnvironmentFailed, match="call reset first"):
                await dying.step("1")

    asyncio.run(run())


def test_errors_come_back_as_they_were_raised() -> None:
    async def run() -> None:
        async with pool_of(1) as pool:
            environment = pool(task())
            await environment.reset(1, {})
            with pytest.raises(
                EnvironmentFailed, match=r"Counter\.step raised ValueError: boom .*worlds\.py"
            ) as caught:
                await environment.step("raise boom")
            assert "Traceback" in str(caught.value.__cause__)
            await environment.reset(1, {})
            assert (await environment.step("1")).observation == "2"
            assert len(pool.children) == 1  # raising ends no process
            unknown = pool(Task("t", "Countre", 0))
            with pytest.raises(ConfigError, match="did you mean 'Counter'"):
                await unknown.reset(0, {})

    asyncio.run(run())


def test_what_user_code_prints_stays_out_of_the_programs_output(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with pool_of(1) as pool:
            environment = pool(task())
            await environment.reset(1, {})
            await environment.step("1")
            with pytest.raises(EnvironmentFailed, match="with exit code 0"):
                await environment.step("exit 0")

    asyncio.run(run())
    assert capfd.readouterr().out == ""


def test_a_hung_environment_holds_nobody_up(fifo: Path) -> None:
    """Not even before it is given up: the other episodes play to their end meanwhile, and newcomers start."""

    async def play(pool: EnvironmentPool, seed: int) -> str:
        environment = pool(task())
        await environment.reset(seed, {})
        for _ in range(3):
            result = await environment.step("1")
        await environment.close()
        return str(result.observation)

    async def run() -> None:
        async with pool_of(1) as pool, asyncio.TaskGroup() as group:
            hung = pool(task())
            await hung.reset(0, {})
            call = group.create_task(hung.step(f"hang {fifo}"))
            await until_written(fifo)
            for _ in range(2):
                assert await asyncio.gather(*(play(pool, seed) for seed in range(6))) == [str(n + 3) for n in range(6)]
            assert not call.done()
            assert (pool.killed, len(pool.children)) == (0, 7)
            call.cancel()
        assert pool.killed == 1

    asyncio.run(run())


def test_all_seven_siblings_of_a_hung_environment_are_rebuilt(fifo: Path) -> None:
    async def run() -> None:
        async with pool_of(8) as pool:
            hung, *siblings = (pool(task()) for _ in range(8))
            await asyncio.gather(*(one.reset(seed, {}) for seed, one in enumerate([hung, *siblings])))
            await asyncio.gather(*(one.step("2") for one in siblings))
            await give_up_on_a_hanging_step(hung, fifo)
            results = await asyncio.gather(*(one.step("3") for one in siblings))
            assert [result.observation for result in results] == [str(seed + 5) for seed in range(1, 8)]
            assert (pool.killed, pool.rebuilt, pool.lost) == (1, 7, 0)
            assert len({pid(result) for result in results}) == 1, "they share a process again"

    asyncio.run(run())


HOST = """
import asyncio, sys
from isolation_worlds import Counter
from rollweave.environments.isolation import EnvironmentPool
from rollweave.environments.registry import EnvironmentFactory, maker
from rollweave.tasks import Task

async def main():
    pool = EnvironmentPool(EnvironmentFactory({"Counter": maker(Counter)}), 1)
    idle, hung = (pool(Task("t", "Counter", 0)) for _ in range(2))
    await idle.reset(1, {})
    await hung.reset(1, {})
    print(*(child.process.pid for child in pool.children), flush=True)
    await hung.step("hang " + sys.argv[1])

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes that are not its children")
def test_a_host_that_is_killed_takes_its_processes_along(fifo: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", HOST, str(fifo)], stdout=subprocess.PIPE, env=environment) as host:
        assert host.stdout is not None
        children = [int(word) for word in host.stdout.readline().split()]
        fifo.read_text()  # one of the two now hangs in user code
        handles = [os.pidfd_open(child) for child in children]
        host.kill()
    for handle in handles:
        ended, _, _ = select.select([handle], [], [], 30.0)
        assert ended, "an orphan goes on"
        os.close(handle)


def test_processes_are_shared_by_k_and_used_again() -> None:
    async def run() -> None:
        async with pool_of(2) as pool:
            four = [pool(task()) for _ in range(4)]
            await asyncio.gather(*(environment.reset(1, {}) for environment in four))
            pids = [pid(await environment.step("1")) for environment in four]
            assert sorted(pids.count(one) for one in set(pids)) == [2, 2]
            await four[0].close()
            another = pool(task())
            await another.reset(1, {})
            assert pid(await another.step("1")) == pids[0]

    asyncio.run(run())


def test_async_environments_in_one_process_wait_side_by_side() -> None:
    async def run() -> None:
        async with pool_of(2) as pool:
            one, other = pool(task(Slow)), pool(task(Slow))
            await one.reset(1, {})
            await other.reset(2, {})
            first, second = await asyncio.gather(one.step("1"), other.step("1"))
            assert (first.observation, second.observation) == ("2", "3")

    asyncio.run(run())


def test_closing_the_pool_ends_the_processes_and_whoever_waits_in_them(fifo: Path) -> None:
    async def run() -> None:
        async with pool_of(1) as pool:
            environment = pool(task())
            await environment.reset(1, {})
            process = pid(await environment.step("1"))
            call = asyncio.ensure_future(environment.step(f"hang {fifo}"))
            await until_written(fifo)
            await pool.close()
            with pytest.raises(EnvironmentFailed, match="closed"):
                await call
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)

    asyncio.run(run())


@pytest.mark.slow
def test_one_hung_environment_among_64_costs_its_own_slot_and_nothing_else() -> None:
    """Whole episodes, as a host plays them: the hung one is killed at its deadline, tried again, and killed again."""
    attempts = 2
    reports: list[Report] = []

    async def main(clock: Clock) -> EnvironmentPool:
        pool = EnvironmentPool(EnvironmentFactory({"HangsForOne": maker(HangsForOne)}), 1)
        stage = Stage(
            clock=clock,
            proxy=proxy_of([SimulatedEngine(clock, constant(0.001), lambda rng: 2)]),
            environment=pool,
            dialogue=ByteDialogue(),
            scorer=StepRewards(),
            rollout=RolloutConfig(deadlines=Deadlines(env_step=10.0)),
        )
        dispatcher = Dispatcher()
        host: EnvHost
        link = dispatcher.attach(lambda packet: host.link.receive(packet), 64)
        host = EnvHost(stage, link.receive)
        all_reported = asyncio.Event()

        def hear(lease: Lease, report: Report) -> None:
            reports.append(report)
            if report.trajectory.outcome is Outcome.TIMED_OUT and lease.tries + 1 < attempts:
                submit(lease.member, lease.tries + 1)
            elif len(reports) == 64 + attempts - 1:
                all_reported.set()

        def submit(seed: int, attempt: int) -> None:
            drawn = Task(str(seed), "HangsForOne", seed)
            dispatcher.submit([Lease(f"0.{seed}.{attempt}", 0, seed, attempt, drawn, seed, Sampling(), 0)], hear)

        async with asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(host.run())
            for seed in range(64):
                submit(seed, 0)
            await all_reported.wait()
            playing.cancel()
        await pool.close()
        return pool

    pool = run_wall(main)
    outcomes = {report.attempt: report.trajectory.outcome for report in reports}
    hung = {f"0.{HangsForOne.unlucky}.{attempt}" for attempt in range(attempts)}
    assert {lease for lease, outcome in outcomes.items() if outcome is Outcome.TIMED_OUT} == hung
    assert sum(outcome is Outcome.FINISHED for outcome in outcomes.values()) == 63
    assert (pool.killed, pool.rebuilt, pool.lost) == (attempts, 0, 0)
    assert [report.attempt for report in reports[-attempts:]] == sorted(hung), "the others did not wait for it"
