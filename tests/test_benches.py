"""The instruments themselves: a bench that measures the wrong thing is worse than none."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from bench.learning.learn import Curve
from bench.learning.plot import svg
from bench.learning.statistics import summarise, table
from bench.learning.variants import LOSSES, SYNC, TARGET, WRONG, Variant, variants
from bench.waste.scenarios import SCENARIOS

from rollweave.config.load import load_job

ASYNC = importlib.import_module("bench.async.cases")  # `async` is a keyword: no import statement can name it
MEASURE = importlib.import_module("bench.async.measure")
REPORT = importlib.import_module("bench.async.report")
AFFINITY = importlib.import_module("bench.affinity.real")

ROOT = Path(__file__).resolve().parents[1]
BENCHES = sorted(path.parent.name for path in (ROOT / "bench").glob("*/__main__.py"))

CASES = [case for cases in ASYNC.CASES.values() for case in cases]


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_says_how_it_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"bench.{name}", run_name="__main__")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m bench.{name} ") and "--json" in shown
    options = set(re.findall(r"--[a-z-]+", shown)) - {"--help"}
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert f"\n| `{name}` | " in page, "the table of docs/benchmarks.md has a row for every bench"
    (command,) = re.findall(rf"^python -m bench\.{name} .*$", page, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", command)) <= options


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file.stem)
def test_the_modes_of_a_case_differ_in_mode_and_placement_only(case: object) -> None:
    jobs = [load_job(case.file, mode.overrides) for mode in ASYNC.MODES]  # type: ignore[attr-defined]
    assert [(job.pipeline.type, job.runtime.placement) for job in jobs] == [  # type: ignore[union-attr]
        ("sync", "disaggregated"),
        ("sync", "colocated"),
        ("sync+", "disaggregated"),
        ("rollart", "disaggregated"),
    ]
    stripped = {job.model_dump_json(exclude={"pipeline", "runtime"}) for job in jobs}
    assert len(stripped) == 1


def test_the_latency_case_is_the_one_of_the_bar() -> None:
    job = load_job(ASYNC.HERE / "latency.yaml")
    assert job.environment.type == "frozen_lake"
    assert (job.environment.latency.mean, job.environment.latency.std) == (0.3, 0.3)  # type: ignore[union-attr]
    assert job.rollout.environments == 64


def row(step: int, seconds: float) -> dict[str, float]:
    return {"step": step, **dict.fromkeys(MEASURE.KEYS.values(), 0.5), "time/step": seconds}


def test_steps_per_hour_leave_out_the_first_steps() -> None:
    rows = [*(row(step, 1000.0) for step in range(MEASURE.SKIPPED_STEPS)), row(3, 1.0), row(4, 3.0)]
    result = MEASURE.summarise(rows)
    assert result.steps_per_hour == pytest.approx(1800)
    assert result.engine_idle == 0.5


def test_a_bar_is_judged_within_repeats() -> None:
    """The machine was twice as fast in the second repeat: the ratio does not see it."""
    some = MEASURE.summarise([row(5, 1.0)])
    slow = [replace(some, steps_per_hour=100), replace(some, steps_per_hour=200)]
    fast = [replace(some, steps_per_hour=150), replace(some, steps_per_hour=300)]
    bar = ASYNC.Bar(ASYNC.ROLLART, ASYNC.SYNC, 1.4)
    case = replace(CASES[0], bars=(bar, replace(bar, times=1.6)))
    results = {mode.name: fast if mode is ASYNC.ROLLART else slow for mode in ASYNC.MODES}
    figures = REPORT.figures(case, results)
    assert [(judged["ratio"], judged["met"]) for judged in figures["bars"]] == [(1.5, True), (1.5, False)]
    assert "MISSED" in REPORT.table(figures)


def curve(steps: int, staleness: int) -> Curve:
    """Learns nothing, then everything: the mean over five is there three steps later."""
    found = Curve()
    for step in range(steps):
        found.add({"reward/mean": float(step >= steps - 4), "staleness/mean": staleness, "staleness/max": staleness})
    return found


def test_steps_to_a_reward_are_counted_on_the_smoothed_curve() -> None:
    assert curve(40, 0).steps_to(TARGET) == 40
    assert curve(40, 0).steps_to(0.5) == 39
    assert Curve([0.0] * 100).steps_to(TARGET) is None


def test_the_delay_of_alpha_steps_is_no_slowdown() -> None:
    late, slow = Variant("late", 4, ()), Variant("slow", 4, ())
    seeds = range(8)
    figures = summarise(
        {
            SYNC: {seed: curve(40 + seed, 0) for seed in seeds},
            late: {seed: curve(44 + seed, 4) for seed in seeds},
            slow: {seed: curve(60 + seed, 4) for seed in seeds},
        }
    )
    by_loss = {row.loss: row for row in figures}
    assert by_loss["late"].slowdown == pytest.approx(1.0) and by_loss["late"].met
    assert by_loss["slow"].slowdown > 1.3 and not by_loss["slow"].met
    assert by_loss["late"].low <= by_loss["late"].slowdown <= by_loss["late"].high
    assert by_loss["late"].staleness_max == 4
    assert "MISSED" in table(figures) and svg(figures).count("<circle") == 2


def test_a_run_that_never_gets_there_is_counted_as_such() -> None:
    never = Variant("never", 1, ())
    figures = summarise({SYNC: {0: curve(40, 0)}, never: {0: Curve([0.0] * 100, [1.0] * 100, 1.0)}})
    assert (figures[1].unfinished, figures[1].median_steps, figures[1].met) == (1, 100, False)


def test_every_variant_of_the_learning_bench_is_a_valid_job() -> None:
    chosen = variants([*LOSSES, WRONG], [1, 4])
    jobs = [variant.job() for variant in chosen]
    assert [job.pipeline.alpha for job in jobs] == [variant.alpha for variant in chosen]
    assert [job.training.ignores_staleness for job in jobs] == [variant.loss == WRONG for variant in chosen]
    assert all(job.training.minibatches == 1 for job in jobs), "else the losses differ on fresh data too"


@pytest.mark.slow
def test_rollout_runs_as_far_ahead_as_it_may(tmp_path: Path) -> None:
    """What the learning bench rests on: in the steady state every trajectory is alpha versions old."""
    from bench.learning.learn import learn, make_policy
    from bench.learning.variants import FILE

    overrides = ["pipeline.alpha=2", "training.steps=6", "rollout.groups_per_step=2", "rollout.group_size=4"]
    job = load_job(FILE, overrides)
    curve = learn(job, make_policy(job, tmp_path / "policy"), target=2.0)
    assert curve.staleness == [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]


def test_every_scenario_of_the_waste_bench_is_a_valid_job() -> None:
    assert len({scenario.job(0).model_dump_json() for scenario in SCENARIOS}) >= len(SCENARIOS) - 1


def test_the_policies_of_the_affinity_bench_differ_in_routing_only(tmp_path: Path) -> None:
    jobs = {}
    for name in AFFINITY.POLICIES:
        (tmp_path / "job.yaml").write_text(json.dumps(AFFINITY.job_of(name, exchange_at=7)))
        jobs[name] = load_job(tmp_path / "job.yaml")
    declared = [[pool.tasks for pool in job.cluster.pools] for job in jobs.values() if job.cluster is not None]
    assert declared == [[(), ()], [(), ()], [("sums",), ("lake",)], [("lake",), ("sums",)]]
    assert [job.rollout.affinity for job in jobs.values()] == ["auto", "least_held", "auto", "auto"]
    slow = [pool.slowdown for job in jobs.values() if job.cluster is not None for pool in job.cluster.pools]
    pairs = [(one, other) for one, other in zip(slow[::2], slow[1::2], strict=True) if one and other]
    assert len(pairs) == 4 and all(one.at(6) == other.at(7) for one, other in pairs)


def test_the_affinity_bench_says_when_a_run_has_followed() -> None:
    row = {"served/trajectories/lake/contexts": 3, "served/trajectories/lake/answers": 1}
    assert AFFINITY.share(row, "lake", "contexts") == 0.75 and AFFINITY.share({}, "lake", "contexts") is None
    assert AFFINITY.followed([0.1, 0.1, 0.9, None, 0.9, 0.9, 0.1, 0.1, 0.1], exchanged_at=2) == 7
    assert AFFINITY.followed([0.9, 0.1, 0.9, 0.9, 0.9, 0.9], exchanged_at=1) is None
    speeds = {name: [100.0, 200.0] for name in AFFINITY.POLICIES} | {"auto": [120.0, 240.0]}
    assert AFFINITY.judge(speeds)["to_least_held"] == pytest.approx(1.2) and AFFINITY.judge(speeds)["met"]
