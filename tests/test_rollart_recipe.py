"""The flagship recipe: what `make rollart` compares, and what it says in the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml
from tools import rollart

from rollweave.config.load import load_job
from rollweave.simulation.outcome import SimulationResult


def test_the_recipe_is_a_job_of_two_tasks_on_two_pools() -> None:
    job = load_job(rollart.RECIPE)
    assert job.cluster is not None and job.rollout.affinity == "auto" and job.pipeline.alpha == 1
    assert all(not pool.tasks and pool.slowdown is not None for pool in job.cluster.pools)


def test_a_single_pool_has_as_many_engines_of_one_kind(tmp_path: Path) -> None:
    data = yaml.safe_load(rollart.RECIPE.read_text())
    pools = data["cluster"]["pools"]
    single = rollart.single(pools[1], pools)
    job = load_job(rollart.write({**data, "cluster": {"pools": single}}, tmp_path / "job.yaml"))
    assert job.cluster is not None
    assert [(pool.name, pool.count) for pool in job.cluster.pools] == [("contexts", 2)]
    assert job.environment.of[1].environment.target.endswith("recipes/rollart/sums.py:Sums")  # type: ignore[union-attr]


def test_the_summary_says_what_the_mix_is_worth_and_who_served_what() -> None:
    def rows(seconds: float, **served: int) -> list[dict[str, Any]]:
        counts = {f"served/trajectories/{key.replace('__', '/')}": count for key, count in served.items()}
        return [{"time/step": 100.0} for _ in range(rollart.SKIPPED_STEPS)] + [{"time/step": seconds, **counts}] * 3

    measured = {"mix": rows(2.0, lake__a=3, lake__b=1, sums__b=5), "a": rows(5.0), "b": rows(3.0)}
    simulated = {
        name: SimpleNamespace(step_seconds=seconds) for name, seconds in (("mix", 1.0), ("a", 2.0), ("b", 1.2))
    }
    text = rollart.summary(Path("runs/x"), measured, cast(dict[str, SimulationResult], simulated))
    assert "a               5.00 s    2.50x      2.00x" in text
    assert "lake: 75% on a, 25% on b\nsums: 100% on b\nreport: runs/x/mix/report.html" in text
