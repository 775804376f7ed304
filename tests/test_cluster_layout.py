"""A cluster file on a real machine: who gets which cores, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleets import fleet_of
from rollweave.config.job import RayRuntime
from rollweave.config.load import load_job
from rollweave.errors import ConfigError
from rollweave.runtimes import layout as module
from rollweave.runtimes.layout import EngineSeat, Layout, layout

JOB = """
model: {type: tiny}
environment: {type: frozen_lake}
"""
MEASURED = """
devices:
  - name: mine
    kind: cpu
    tflops: 1
    bandwidth: 1
    memory: 1
    link: 1
    price: 0
    measured:
      model: job
      threads: 4
      engine: {batches: [1], seconds: [1.0]}
      trainer: {step: 1, token: 1}
      weights: {publish: 0, prepare: 0, commit: 0}
"""


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 8)


def laid_out(folder: Path, cluster: str, *overrides: str) -> Layout:
    (folder / "job.yaml").write_text(JOB)
    (folder / "cluster.yaml").write_text(cluster)
    job = load_job(folder / "job.yaml", ["cluster=cluster.yaml", *overrides])
    assert isinstance(job.runtime, RayRuntime)
    return layout(job, job.runtime)


def pool(name: str, role: str, count: int, **more: Any) -> str:
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"  - {{name: {name}, role: {role}, count: {count}, device: {more.pop('device', 'CPU')}{extra}}}\n"


def test_every_engine_has_the_cores_of_its_pool_and_the_tasks_that_prefer_it(tmp_path: Path) -> None:
    pools = pool("a", "rollout", 4, tensor_parallel=2) + pool("b", "rollout", 1, tasks="[math]") + pool("t", "train", 3)
    plan = laid_out(tmp_path, f"pools:\n{pools}")
    two = EngineSeat(2, pool="a", device="CPU")
    assert plan == Layout((two, two, EngineSeat(1, ("math",), "b", "CPU")), 3, colocated=False, trainer_pool="t")
    view = fleet_of([None] * 3, [seat.tasks for seat in plan.engines]).view
    assert list(view.open_to("math")) == ["engine-2/1"]
    assert list(view.open_to("games")) == ["engine-0/1", "engine-1/1"]


def test_a_colocated_pool_is_counted_once(tmp_path: Path) -> None:
    plan = laid_out(tmp_path, f"pools:\n{pool('all', 'colocated', 8, tensor_parallel=4)}")
    four = EngineSeat(4, pool="all", device="CPU")
    assert plan == Layout((four, four), 8, colocated=True, trainer_pool="all")


def test_prefill_and_decode_pools_are_engines_of_these_roles(tmp_path: Path) -> None:
    pools = pool("p", "prefill", 2, tensor_parallel=2) + pool("d", "decode", 2) + pool("t", "train", 4)
    plan = laid_out(tmp_path, f"pools:\n{pools}")
    decode = EngineSeat(1, (), "d", "CPU", "decode")
    assert plan.engines == (EngineSeat(2, (), "p", "CPU", "prefill"), decode, decode)


def test_a_measured_device_is_as_many_cores_as_it_was_measured_with(tmp_path: Path) -> None:
    pools = "".join(f"  - {{name: {role}, role: {role}, count: 1, device: mine}}\n" for role in ("rollout", "train"))
    plan = laid_out(tmp_path, f"pools:\n{pools}{MEASURED}")
    assert plan == Layout((EngineSeat(4, pool="rollout", device="mine"),), 4, colocated=False, trainer_pool="train")


@pytest.mark.parametrize(
    ("pools", "overrides", "said"),
    [
        (pool("a", "rollout", 6) + pool("t", "train", 3), [], "want 9 cores and this machine has 8"),
        ("  - {name: a, role: colocated, count: 8, device: H800}\n", [], "8 x H800, but .* on CPU cores"),
        (
            pool("a", "rollout", 1) + pool("t", "train", 1) + pool("judge", "reward", 1),
            [],
            "judge has role: reward, which only `rollweave simulate`",
        ),
        (
            pool("all", "colocated", 2),
            ["runtime.type=inline", "runtime.engines=3"],
            "runtime.engines contradicts cluster",
        ),
        (
            pool("p", "prefill", 1) + pool("d", "decode", 1) + pool("t", "train", 1),
            ["engine.type=vllm"],
            "pool p has role: prefill, which needs engine.type=torch",
        ),
        (pool("all", "colocated", 2), ["runtime.trainer_threads=2"], "runtime.trainer_threads contradicts cluster"),
        (pool("all", "rollout", 2), [], "a cluster needs a pool that generates"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(tmp_path: Path, pools: str, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        laid_out(tmp_path, f"pools:\n{pools}", *overrides)


def test_a_cluster_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "cluster: nowhere.yaml\n")
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        load_job(tmp_path / "job.yaml")


def test_the_ranks_of_a_trainer_divide_its_cores(tmp_path: Path) -> None:
    pools = f"pools:\n{pool('a', 'rollout', 4)}{pool('t', 'train', 4)}"
    plan = laid_out(tmp_path, pools, "training.ranks=2")
    assert (plan.trainer_ranks, plan.trainer_threads) == (2, 2)
    with pytest.raises(ConfigError, match=r"training\.ranks is 5, but pool t has 4 cores"):
        laid_out(tmp_path, pools, "training.ranks=5")


def test_several_ranks_need_processes(tmp_path: Path) -> None:
    pools = f"pools:\n{pool('a', 'rollout', 4)}{pool('t', 'train', 4)}"
    with pytest.raises(ConfigError, match=r"training\.ranks is 2, but runtime\.type=inline is one process"):
        laid_out(tmp_path, pools, "training.ranks=2", "runtime.type=inline")
