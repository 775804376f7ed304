"""Worker and Cluster: decorators declare, the cluster file overrides, calls are honest about workers that are gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollweave.clock import Clock, run_virtual, run_wall
from rollweave.cluster.decorators import hw_mapping, register, register_serverless
from rollweave.cluster.resolve import WorkerSeat
from rollweave.cluster.worker import Cluster, Worker, ray_resources
from rollweave.config.cluster import ClusterConfig
from rollweave.errors import ConfigError, WorkersFailed

HERE = Path(__file__).parent
POOLS: tuple[dict[str, Any], ...] = (
    {"name": "h800", "device": "H800", "count": 2, "role": "rollout"},
    {"name": "h20", "device": "H20", "count": 4, "role": "rollout", "tensor_parallel": 2},
    {"name": "train", "device": "H800", "count": 3, "role": "train"},
    {"name": "cores", "device": "CPU", "count": 4, "role": "environment"},
    {"name": "judges", "device": "serverless", "count": 4, "role": "reward"},
)


def config(**tasks: Sequence[str]) -> ClusterConfig:
    """`tasks` that pools name."""
    pools = tuple({**pool, "tasks": tuple(tasks.get(pool["name"], ()))} for pool in POOLS)
    return ClusterConfig.model_validate({"pools": pools})


def reward(text: str) -> float:
    return float(len(text))


class Generator(Worker):
    role = "generate"

    def __init__(self, seat: WorkerSeat, greeting: str = "hello") -> None:
        super().__init__(seat)
        self.greeting = greeting
        self.version = 0
        self.judge: Any = None
        self.gate: asyncio.Event | None = None

    @register(mode="execute_all")
    def update(self, version: int) -> tuple[int, int]:
        self.version = version
        return self.seat.rank, version

    @register(mode="execute_all")
    def fail_on(self, rank: int) -> int:
        if self.seat.rank == rank:
            raise ValueError("out of memory")
        return self.seat.rank

    @register(mode="rank_zero")
    async def describe(self) -> str:
        return f"{self.greeting} from {self.seat}"

    @register(mode="scatter")
    def double(self, numbers: list[int], names: list[str]) -> list[str]:
        return [f"{2 * number}{name}@{self.seat.rank}" for number, name in zip(numbers, names, strict=True)]

    @hw_mapping(hw_affinity={"frozen_lake": "H800", "default": "H20"})
    async def generate(self, prompt: str, wait: bool = False) -> tuple[int, str]:
        if wait:
            self.gate = asyncio.Event()
            await self.gate.wait()
        return self.seat.rank, self.seat.device

    @hw_mapping(hw_affinity={"default": "H800"})
    def tagged(self, tag_name: str = "default") -> str:
        return f"{tag_name} on {self.seat.device}"

    @register_serverless(attribute="judge", serverless_url="local://test_workers.py:reward")
    def score(self, text: str) -> float:
        return float(self.judge(text))

    @register(mode="execute_all")
    def pid(self) -> int:
        return os.getpid()

    def own(self) -> None:
        """Not decorated: not a method of the cluster."""


def used(main: Any, **options: Any) -> Any:
    async def run(clock: Clock) -> Any:
        async with Cluster(options.pop("config", config()), Generator, base=HERE, **options) as cluster:
            return await main(cluster)

    return run_virtual(run)


def test_every_worker_of_the_roles_pools_is_called_and_the_results_come_by_rank() -> None:
    async def main(cluster: Cluster[Generator]) -> None:
        assert [str(seat) for seat in cluster.seats] == [
            "worker 0 (pool h800, H800)",
            "worker 1 (pool h800, H800)",
            "worker 2 (pool h20, H20)",
            "worker 3 (pool h20, H20)",
        ]
        assert await cluster.update(7) == [(rank, 7) for rank in range(4)]
        typed: list[tuple[int, int]] = await cluster.gather(Generator.update, 8)
        assert typed[3] == (3, 8)
        assert await cluster.describe() == "hello from worker 0 (pool h800, H800)"

    used(main)


@pytest.mark.parametrize(("length", "parts"), [(8, [2, 2, 2, 2]), (5, [1, 1, 1, 2]), (2, [0, 1, 0, 1]), (0, [0] * 4)])
def test_scatter_gives_each_worker_its_part_and_joins_the_results_in_order(length: int, parts: list[int]) -> None:
    async def main(cluster: Cluster[Generator]) -> list[str]:
        result: list[str] = await cluster.double(list(range(length)), [str(n) for n in range(length)])
        return result

    results = used(main)
    assert [result.split("@")[0] for result in results] == [f"{2 * n}{n}" for n in range(length)]
    ranks = [int(result.split("@")[1]) for result in results]
    assert [ranks.count(rank) for rank in range(4)] == parts


def test_scatter_wants_lists_of_one_length() -> None:
    with pytest.raises(ConfigError, match=r"double: mode scatter wants lists of one length, and got \[1, 2\]"):
        used(lambda cluster: cluster.double([1], ["a", "b"]))


@pytest.mark.parametrize(
    ("tag", "tasks", "device", "reason"),
    [
        ("frozen_lake", {}, "H800", "frozen_lake to H800: hw_affinity"),
        ("math", {}, "H20", "math to H20: hw_affinity"),
        ("frozen_lake", {"h20": ("frozen_lake",)}, "H20", "frozen_lake to pool h20: the cluster file names it"),
        ("math", {"h20": ("frozen_lake",)}, "H20", "math to H20: hw_affinity"),
    ],
)
def test_decorators_declare_and_the_cluster_file_overrides(
    tag: str, tasks: dict[str, tuple[str, ...]], device: str, reason: str
) -> None:
    async def main(cluster: Cluster[Generator]) -> tuple[int, str]:
        assert cluster.choose("generate", tag).reason == reason
        called: tuple[int, str] = await cluster.generate("x", tag_name=tag)
        return called

    assert used(main, config=config(**tasks))[1] == device


def test_of_the_workers_that_suit_the_least_busy_is_called() -> None:
    async def main(cluster: Cluster[Generator]) -> None:
        async with asyncio.TaskGroup() as tasks:
            busy = [tasks.create_task(cluster.generate("x", wait=True)) for _ in range(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert +cluster._open == {2: 2, 3: 1}
            assert (await cluster.generate("x"))[0] == 3
            for task in busy:
                task.cancel()
        assert cluster._open.total() == 0

    used(main)


def test_a_preferred_device_without_workers_falls_back_and_says_so() -> None:
    async def main(cluster: Cluster[Generator]) -> str:
        cluster.gone = {2: "killed", 3: "killed"}
        assert (await cluster.generate("x", tag_name="math"))[1] == "H800"
        return cluster.choose("generate", "math").reason

    assert used(main) == "math to H20: hw_affinity, but no worker is there: any other"


def test_a_method_that_wants_the_tag_gets_it() -> None:
    async def main(cluster: Cluster[Generator]) -> list[str]:
        return await cluster.gather(Generator.tagged, tag_name="math")

    assert used(main) == ["math on H800"]


def test_a_local_function_is_what_the_attribute_calls() -> None:
    assert used(lambda cluster: cluster.score("four")) == 4.0


def test_a_failure_says_which_worker_and_what_the_others_have_done() -> None:
    async def main(cluster: Cluster[Generator]) -> None:
        with pytest.raises(WorkersFailed, match="out of memory") as raised:
            await cluster.fail_on(2)
        assert str(raised.value).startswith("fail_on failed on 1 of 4 workers (done by 0, 1, 3): worker 2 (pool h20")
        assert raised.value.results == {0: 0, 1: 1, 3: 3}
        assert isinstance(raised.value.failures[2], ValueError)

    used(main)


def test_a_worker_that_is_gone_is_named_before_anything_is_called() -> None:
    async def main(cluster: Cluster[Generator]) -> None:
        cluster.gone = {1: "its process was killed"}
        with pytest.raises(WorkersFailed, match=r"update: nothing was called, because worker 1 \(pool h800, H800\) is"):
            await cluster.update(9)
        assert [handle._shell._worker.version for handle in cluster._handles] == [0] * 4  # type: ignore[attr-defined]
        assert await cluster.describe(), "rank 0 is there"

    used(main)


class Undecorated(Worker):
    def run(self) -> None: ...


class Remote(Worker):
    @register_serverless(attribute="judge", serverless_url="fc://judge")
    def score(self, text: str) -> None: ...


class Clash(Worker):
    @register()
    def gather(self) -> None: ...


class Trainer(Worker):
    role = "train"

    @register()
    def step(self) -> int:
        return self.seat.of


class Judge(Worker):
    role = "reward"

    @register()
    def score(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Undecorated, "Undecorated declares no method: put register"),
        (Remote, r"serverless_url of judge: function begins with fc://, which is no kind of function; there is http"),
        (Clash, r"Clash\.gather: a cluster has a method of that name itself: rename yours"),
        (
            Judge,
            "workers of role 'reward' need a pool of role: reward, and the cluster file has none whose devices run",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(kind: type[Worker], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Cluster(config(), kind)


def test_decorators_refuse_what_contradicts_itself() -> None:
    with pytest.raises(ConfigError, match="there is no mode 'execute_al'; did you mean 'execute_all'"):
        register(mode="execute_al")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="hw_affinity needs an entry 'default'"):
        hw_mapping(hw_affinity={"math": "H20"})
    with pytest.raises(ConfigError, match=r"register\(mode='execute_all'\) calls several workers and hw_mapping one"):
        register()(hw_mapping(hw_affinity={"default": "H20"})(lambda self: None))


def test_an_unknown_method_names_the_nearest() -> None:
    async def main(cluster: Cluster[Generator]) -> None:
        with pytest.raises(AttributeError, match="Generator has no decorated method 'updat'; did you mean 'update'"):
            await cluster.updat(3)
        with pytest.raises(AttributeError, match="no decorated method 'own'"):
            await cluster.own()

    used(main)


def test_each_role_gets_the_pools_that_do_its_work() -> None:
    async def main(clock: Clock) -> list[int]:
        async with Cluster(config(), Trainer) as trainers:
            steps: list[int] = await trainers.step()
            return steps

    assert run_virtual(main) == [3, 3, 3]


@pytest.mark.slow
def test_workers_on_ray_are_processes_and_one_that_is_killed_is_named(ray_workers: object) -> None:
    async def main(clock: Clock) -> None:
        resources = ray_resources(config())
        async with Cluster(config(), Generator, "hi", resources=resources, base=HERE) as cluster:
            assert resources.bindings["generator-3"].reason.startswith("pool h20: ")
            pids = await cluster.pid()
            assert len(set(pids)) == 4 and os.getpid() not in pids
            assert (await cluster.describe()).startswith("hi from worker 0")
            assert (await cluster.generate("x", tag_name="frozen_lake"))[1] == "H800"
            assert await cluster.score("four") == 4.0
            os.kill(pids[2], signal.SIGKILL)
            with pytest.raises(WorkersFailed, match=r"failed on 1 of 4 workers \(done by 0, 1, 3\): worker 2"):
                await cluster.update(5)
            with pytest.raises(WorkersFailed, match="nothing was called, because worker 2"):
                await cluster.update(6)
            assert (await cluster.generate("x", tag_name="math"))[0] == 3, "the other H20"
        assert not resources.bindings

    run_wall(main)


def test_the_example_of_the_page_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    _, example, between, *_ = (HERE.parent / "docs" / "workers.md").read_text().split("```")
    assert example.startswith("python\n") and "It prints" in between
    printed = (HERE.parent / "docs" / "workers.md").read_text().split("It prints\n\n```\n")[1].split("```")[0]
    exec(compile(example.removeprefix("python\n"), "docs/workers.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == printed


class Clumsy(Worker):
    role = "train"

    def __init__(self, seat: WorkerSeat) -> None:
        super().__init__(seat)
        if seat.rank == 1:
            raise OSError("no such device")

    @register()
    def step(self) -> None: ...


def test_a_worker_that_cannot_be_made_is_named_at_the_start() -> None:
    async def main(clock: Clock) -> None:
        async with Cluster(config(), Clumsy):
            raise AssertionError("it should not have started")

    with pytest.raises(WorkersFailed, match=r"the start failed on 1 of 3 workers .*: worker 1 .*no such device"):
        run_virtual(main)
