"""Replaying a trace: exact progress, exact books, failures, full pools, and the phases behind the mean rates."""

from __future__ import annotations

import argparse
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bench.mux_cost.__main__ import measure
from typer.testing import CliRunner

from mux_worlds import line, plain_job, recorded_traces, scenario
from rollweave.cli.mux import app
from rollweave.errors import ConfigError
from rollweave.mux.baselines.setups import setup
from rollweave.mux.baselines.simple import Plain, Solo
from rollweave.mux.decisions.plan import Plan, PlanStep
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import ClusterState, rollout_pool, train_pool
from rollweave.mux.simulation.jobs import MODELS, SIZES, JobMix, draw_jobs
from rollweave.mux.simulation.phases import PhaseReplay
from rollweave.mux.simulation.replay import Failure, Replay, ReplayResult
from rollweave.mux.simulation.report import as_json
from rollweave.mux.simulation.simulate import TraceScenario, simulate
from rollweave.mux.simulation.trace import generate, read_trace, write_trace

PAIR = 57.04
ISSUE_KEYS = {
    "total_cost",
    "slo_attainment",
    "slo_attainment_per_iteration",
    "peak_gpus",
    "moves_per_hour",
    "bubbles",
    "admissions",
    "decisions",
}


class OneGroup(Plain):
    """Puts all jobs into one group, on one rollout node or each on its own, whether that is wise or not."""

    def __init__(self, own_nodes: bool = False, mode: str = "rr") -> None:
        self.own_nodes, self.mode = own_nodes, mode

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        if not state.groups:
            return super().arrive(state, job, now)
        group = next(iter(state.groups.values()))
        nodes = state.rollout.peek(1) if self.own_nodes else group.nodes
        place = PlanStep("place", job.id, group.id, "", nodes, nodes if self.own_nodes else ())
        return Plan((place, PlanStep("arrange", "", group.id, mode=self.mode)))  # type: ignore[arg-type]


def finish_times(outcome: ReplayResult) -> dict[str, float]:
    return {job.job: job.finished_s for job in outcome.ended}


def test_a_job_alone_takes_its_cold_start_and_its_iterations() -> None:
    job = plain_job("a", 60, 40, n_iters=10, cold_roll=30, cold_train=50)
    outcome = Replay(Solo()).run([(100.0, job)])
    assert finish_times(outcome) == {"a": 100 + 50 + 10 * 100}
    assert outcome.ledger.dollars == pytest.approx(PAIR * 1050 / 3600)
    assert outcome.ended[0].in_slo and outcome.ended[0].deadline_s == 150 + 2 * 1000


def test_progress_follows_every_change_of_the_group() -> None:
    """Alone 100 s an iteration, in company 160 s (both rollouts on one node), alone again."""
    jobs = [(0.0, plain_job("a", 80, 20, n_iters=20)), (500.0, plain_job("b", 80, 20, n_iters=5))]
    times = finish_times(Replay(OneGroup()).run(jobs))
    assert times["b"] == pytest.approx(500 + 5 * 160)
    assert times["a"] == pytest.approx(1300 + (20 - 5 - 5) * 100)


def test_switches_are_paid_in_company_only() -> None:
    jobs = [(0.0, plain_job(name, 80, 20, n_iters=4, switch_roll=3, switch_train=2)) for name in "ab"]
    assert finish_times(Replay(OneGroup()).run(jobs)) == {"a": pytest.approx(4 * 166), "b": pytest.approx(4 * 166)}
    alone = Replay(Solo()).run([(0.0, plain_job("a", 80, 20, n_iters=4, switch_roll=3, switch_train=2))])
    assert finish_times(alone) == {"a": 400.0}


def test_cost_is_the_sum_over_groups_of_the_time_they_were_there() -> None:
    """The integral of the cluster's cost against the lives of its groups, seen from outside."""

    class Watching(Scheduler):
        spent, last, groups = 0.0, 0.0, {}

        def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
            Watching.spent += sum(Watching.groups.values()) * (now - Watching.last) / 3600
            super().apply(state, plan, now, arriving)
            Watching.last = now
            Watching.groups = {
                group.id: 14.80 * len({n for job in group.jobs for n in group.pins[job]}) + 42.24 * group.width
                for group in state.groups.values()
            }

    world = scenario(80)
    jobs = draw_jobs(world.trace, world.workload, 0)
    outcome = Replay(Watching()).run([(at.submit_s, job) for at, job in zip(world.trace, jobs, strict=True)])
    assert outcome.ledger.dollars == pytest.approx(Watching.spent, rel=1e-9)
    points = [*outcome.ledger.points]
    end = outcome.ledger.now
    integral = sum(a.cost_per_h * (b.at_s - a.at_s) for a, b in pairwise(points))
    integral += points[-1].cost_per_h * (end - points[-1].at_s)
    assert outcome.ledger.dollars == pytest.approx(integral / 3600, rel=1e-9)


def test_every_iteration_is_counted_once() -> None:
    world = scenario(80)
    outcome = simulate(world, "rollmux", 0)
    wanted = sum(job.n_iters for job in draw_jobs(world.trace, world.workload, 0))
    assert outcome.ledger.iterations == pytest.approx(wanted, rel=1e-9)
    assert len(outcome.ended) == 80 and sum(outcome.admissions.values()) == 80


def test_busy_time_is_the_work_that_was_there() -> None:
    world = scenario(60)
    jobs = draw_jobs(world.trace, world.workload, 0)
    books = simulate(world, "rollmux", 0).ledger
    assert books.rollout.busy_s == pytest.approx(sum(job.n_iters * job.profile.t_roll for job in jobs))
    assert books.train.busy_s == pytest.approx(sum(job.n_iters * job.profile.t_train for job in jobs))


@pytest.mark.parametrize("policy", ["rollmux", "default", "random", "most-idle", "opt", "regroup", "gavel+"])
def test_a_seed_fixes_every_byte(policy: str) -> None:
    small = scenario(10 if policy in ("opt", "regroup") else 30)
    first, second = (json.dumps(as_json(simulate(small, policy, 3))) for _ in range(2))
    assert first == second
    assert first != json.dumps(as_json(simulate(small, policy, 4)))


@pytest.mark.parametrize("kind", ["bl", "rh", "th", "mixed"])
@pytest.mark.parametrize("policy", ["rollmux", "default", "per-iteration"])
def test_our_policies_keep_every_slo(policy: str, kind: str) -> None:
    outcome = simulate(scenario(60, kind=kind), policy, 0)
    assert [job.job for job in outcome.ended if not job.in_slo] == []
    if policy != "default":
        assert outcome.ledger.iterations_in_slo >= outcome.ledger.iterations - outcome.moves - 1e-6


def test_a_killed_job_goes_on_from_its_last_finished_iteration() -> None:
    jobs = [(0.0, plain_job("a", 60, 40, n_iters=10)), (0.0, plain_job("b", 60, 40, n_iters=10))]
    outcome = Replay(Solo()).run(jobs, [Failure("a", 350.0, 1000.0), Failure("b", 5000.0, 6000.0)])
    assert finish_times(outcome) == {"b": 1000.0, "a": 1000.0 + 7 * 100}
    assert outcome.ledger.dollars == pytest.approx(PAIR * (350 + 700 + 1000) / 3600)


def test_iterations_before_a_failure_count_as_in_time_phase_by_phase_too() -> None:
    outcome = PhaseReplay(Solo()).run([(0.0, plain_job("a", 60, 40, n_iters=10))], [Failure("a", 350.0, 1000.0)])
    assert (outcome.ledger.iterations, outcome.ledger.iterations_in_slo) == (10, 10)


def test_the_others_are_not_touched_by_a_failure() -> None:
    """RollMux, Figure 19: the group goes on, faster if anything."""
    jobs = [(0.0, plain_job(name, 80, 20, n_iters=20)) for name in ("a", "b")]
    calm = finish_times(Replay(OneGroup()).run(jobs))
    jobs = [(0.0, plain_job(name, 80, 20, n_iters=20)) for name in ("a", "b")]
    killed = finish_times(Replay(OneGroup()).run(jobs, [Failure("b", 900.0, 1700.0)]))
    assert killed["a"] < calm["a"]


def test_full_pools_make_a_job_wait_for_its_turn() -> None:
    state = ClusterState(rollout_pool(limit=1), train_pool(limit=1))
    jobs = [(0.0, plain_job("a", 60, 40)), (10.0, plain_job("b", 60, 40, n_iters=3)), (20.0, plain_job("c", 60, 40))]
    outcome = Replay(Solo(), state).run(jobs)
    assert finish_times(outcome) == {"a": 1000.0, "b": 1300.0, "c": 2300.0}
    assert {job.job: job.waited_s for job in outcome.ended} == {"a": 0.0, "b": 990.0, "c": 1280.0}
    assert all(job.in_slo for job in outcome.ended)


def test_a_job_that_never_fits_is_an_error_and_no_endless_wait() -> None:
    state = ClusterState(rollout_pool(limit=1), train_pool(limit=1))
    with pytest.raises(ConfigError, match="too small for a"):
        Replay(Solo(), state).run([(0.0, plain_job("a", 60, 40, n_roll=2))])


def test_memory_pressure_costs_money() -> None:
    trace = generate(80)
    tight, roomy = (
        simulate(TraceScenario(trace, JobMix("rh", memory=True), host_gb=size), "rollmux", 0) for size in (1000, 4000)
    )
    assert tight.ledger.dollars > roomy.ledger.dollars
    assert tight.slo_attainment == 1.0


def test_mixed_sizes_and_failures_end_well() -> None:
    world = TraceScenario(generate(60), JobMix(sizes="mixed"), failures=0.2)
    outcome = simulate(world, "rollmux", 0)
    assert len(outcome.ended) == 60 and outcome.slo_attainment == 1.0
    assert sum(decision.event == "fail" for decision in outcome.decisions) > 3


def test_latency_is_what_the_stopwatch_says_and_zero_without() -> None:
    ticks = iter(range(1000))
    measured = Replay(Solo(), stopwatch=lambda: float(next(ticks))).run([(0.0, plain_job("a", 60, 40))])
    assert [decision.latency_ms for decision in measured.decisions] == [1000.0, 1000.0]
    assert {decision.latency_ms for decision in simulate(scenario(10), "rollmux", 0).decisions} == {0.0}


# --- classes ---------------------------------------------------------------------------------------------------------


def test_jobs_come_from_table_6_and_fill_their_duration() -> None:
    trace = [line(0.0, 36000.0)] * 200
    for job in draw_jobs(trace, JobMix("rh"), 0):
        assert 100 <= job.profile.t_roll <= 600 and 25 <= job.profile.t_train <= 200
        assert 2 <= job.profile.t_roll / job.profile.t_train <= 8
        assert 1 <= job.slo <= 2
        assert 36000 <= job.n_iters * job.solo_s < 36000 + job.solo_s
    mixed = draw_jobs(trace, JobMix(), 0)
    heavier = sum(job.profile.t_roll > 1.9 * job.profile.t_train for job in mixed)
    assert 40 < heavier < 95


def test_a_job_is_the_same_whatever_comes_before_it() -> None:
    trace = [line(0.0)] * 5
    assert draw_jobs(trace, JobMix(), 1)[:3] == draw_jobs(trace[:3], JobMix(), 1)
    assert draw_jobs(trace, JobMix(), 1) != draw_jobs(trace, JobMix(), 2)


def test_memory_and_sizes_only_on_request() -> None:
    trace = [line(0.0)] * 50
    assert all(job.profile.mem_roll == 0 and job.profile.n_roll == 1 for job in draw_jobs(trace, JobMix(), 0))
    heavy = draw_jobs(trace, JobMix(memory=True, sizes="mixed"), 0)
    assert {job.profile.mem_train for job in heavy} == {model.mem_train for model in MODELS.values()}
    assert {job.profile.n_roll for job in heavy} == set(SIZES["mixed"])
    assert all(job.profile.n_roll == job.profile.n_train for job in heavy)


@pytest.mark.parametrize("wrong", [{"jobs": "xl"}, {"sizes": "huge"}, {"slo": (0.9, 2.0)}, {"slo": (2.0, 1.5)}])
def test_a_wrong_workload_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        JobMix(**wrong)  # type: ignore[arg-type]


# --- phases ----------------------------------------------------------------------------------------------------------


def run_both(jobs: list[tuple[float, MuxJob]], **group: object) -> tuple[dict[str, float], dict[str, float]]:
    copies = [
        (at, plain_job(job.id, job.profile.t_roll, job.profile.t_train, job.slo, int(job.n_iters))) for at, job in jobs
    ]
    return (
        finish_times(Replay(OneGroup(**group)).run(jobs)),  # type: ignore[arg-type]
        finish_times(PhaseReplay(OneGroup(**group)).run(copies)),  # type: ignore[arg-type]
    )


def test_a_steady_group_runs_at_its_period_phase_by_phase() -> None:
    jobs = [(0.0, plain_job("a", 100, 60, n_iters=200)), (0.0, plain_job("b", 50, 80, n_iters=200))]
    fluid, phased = run_both(jobs)
    for name, time in fluid.items():
        assert phased[name] == pytest.approx(time, abs=160)  # one period out of two hundred


def test_phases_agree_with_mean_rates_to_an_iteration_per_change() -> None:
    """Five jobs come and go in one group: every change may cost an iteration, and no more."""
    shapes = [(150, 100, 300), (120, 90, 120), (100, 110, 200), (130, 60, 90), (80, 80, 60)]
    jobs = [(3000.0 * i, plain_job(str(i), roll, train, n_iters=n)) for i, (roll, train, n) in enumerate(shapes)]
    fluid, phased = run_both(jobs)
    longest = sum(roll for roll, _, _ in shapes)
    for name, time in fluid.items():
        assert abs(phased[name] - time) < 2 * len(shapes) * longest
        assert phased[name] == pytest.approx(time, rel=0.05)


def test_first_come_first_served_lets_a_short_job_run_more_often() -> None:
    """Private rollout nodes, one train node: under round robin the short job is bound to the long one's pace."""
    jobs = [(0.0, plain_job("long", 600, 60, n_iters=60)), (0.0, plain_job("short", 100, 30, n_iters=60))]
    _, strict = run_both(
        [(at, plain_job(j.id, j.profile.t_roll, j.profile.t_train, n_iters=60)) for at, j in jobs], own_nodes=True
    )
    fluid, free = run_both(jobs, own_nodes=True, mode="fifo")
    assert strict["short"] == pytest.approx(60 * 660, rel=0.02)
    assert free["short"] < 60 * 140
    assert fluid["short"] == pytest.approx(free["short"], rel=0.03)
    assert fluid["long"] == pytest.approx(free["long"], rel=0.03)


def test_a_newcomer_does_not_wait_for_the_next_rollout_of_a_job_that_leaves() -> None:
    """The rule of the daemon's permits: `old` trains for the last time, so its rollout node is free for `new`."""
    jobs = [(0.0, plain_job("old", 10, 100, n_iters=1)), (20.0, plain_job("new", 10, 10, n_iters=1))]
    assert finish_times(PhaseReplay(OneGroup()).run(jobs)) == {"old": 110.0, "new": 120.0}


def test_a_newcomer_joins_at_the_tail_of_the_lap_that_rolls_out() -> None:
    """`new` comes while `a` rolls out in its second lap: it is next after `a` and `b`, not after another whole lap."""
    jobs = [(0.0, plain_job(name, 10, 10, n_iters=3)) for name in "ab"]
    finished = finish_times(PhaseReplay(OneGroup()).run([*jobs, (25.0, plain_job("new", 10, 10, n_iters=1))]))
    assert finished == {"new": 60.0, "a": 70.0, "b": 80.0}


@pytest.mark.parametrize("policy", ["rollmux", "default"])
def test_a_whole_trace_costs_the_same_phase_by_phase(policy: str) -> None:
    fluid, phased = (simulate(scenario(40, phases=phases), policy, 0) for phases in (False, True))
    assert phased.ledger.dollars == pytest.approx(fluid.ledger.dollars, rel=0.02)
    assert len(phased.ended) == 40
    assert phased.slo_attainment > 0.95


def test_nobody_shares_a_node_and_rollouts_alternate_with_training() -> None:
    """Gangs of different width under round robin: the phases seen one by one."""
    world = TraceScenario(generate(25), JobMix(sizes="mixed"), phases=True)
    outcome = simulate(world, "rollmux", 0)
    assert len(outcome.ended) == 25
    assert outcome.ledger.iterations == sum(job.n_iters for job in draw_jobs(world.trace, world.workload, 0))


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(write_trace(generate(30)))
    return path


def test_simulate_prints_the_keys_of_the_issue(trace_file: Path) -> None:
    words = ["simulate", "--trace", str(trace_file), "--policy", "rollmux", "--jobs", "bl", "--json"]
    answer = CliRunner().invoke(app, words)
    summary = json.loads(answer.stdout)
    assert summary.keys() >= ISSUE_KEYS
    assert summary["slo_attainment"] == 1.0
    assert set(summary["bubbles"]) == {"rollout", "train"}
    assert sum(summary["admissions"].values()) == pytest.approx(1.0)
    assert len(summary["decisions"]) == 60 and all(decision["latency_ms"] > 0 for decision in summary["decisions"])


def simulated(trace_file: Path, *words: str) -> dict[str, Any]:
    """What `rollweave mux simulate` finds with these options."""
    answer = CliRunner().invoke(app, ["simulate", "--trace", str(trace_file), "--json", *words])
    assert answer.exit_code == 0, answer.exception
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("options", [[], ["--host-gb", "0"], ["--phases"]])
def test_the_command_as_documented_puts_jobs_together(trace_file: Path, options: list[str]) -> None:
    found = {name: simulated(trace_file, "--policy", name, *options) for name in ("solo-d", "rollmux", "default")}
    assert found["default"]["total_cost"] < found["rollmux"]["total_cost"] < found["solo-d"]["total_cost"]
    assert found["solo-d"]["admissions"]["isolated"] == 1.0
    assert all(found[name]["admissions"]["isolated"] < 0.8 for name in ("rollmux", "default"))


def test_host_memory_of_zero_is_enough_for_all_and_little_of_it_costs_money(trace_file: Path) -> None:
    enough, plenty, little = (
        simulated(trace_file, "--policy", "rollmux", "--host-gb", size)["total_cost"] for size in ("0", "99999", "600")
    )
    assert enough == plenty < little


@pytest.mark.parametrize("policy", ["rollmux", "solo-d"])
def test_a_node_that_could_not_hold_a_job_alone_is_refused_with_what_it_needs(trace_file: Path, policy: str) -> None:
    answer = CliRunner().invoke(app, ["simulate", "--trace", str(trace_file), "--policy", policy, "--host-gb", "500"])
    assert isinstance(answer.exception, ConfigError)
    assert "keeps 520.4 GB on each of its nodes; give a node at least as much" in str(answer.exception)


@pytest.mark.parametrize("size", [0.0, -1.0, math.nan])
def test_a_node_without_memory_is_no_scenario(size: float) -> None:
    with pytest.raises(ConfigError, match="host memory of a node must be above 0"):
        TraceScenario([line(0.0)], host_gb=size)


def test_the_bench_and_the_command_find_the_same_costs(trace_file: Path) -> None:
    arguments = argparse.Namespace(seeds=1, phases=False, policies="rollmux,default", no_opt=True, ablation=True)
    rows = {row.policy: row.cost for row in measure("made", read_trace(trace_file), "mixed", arguments)}
    for policy in ("rollmux", "default"):
        assert rows[policy] == simulated(trace_file, "--policy", policy)["total_cost"]
    assert rows["default - fifo"] != rows["default"]


def test_several_seeds_are_averaged_and_plotted(trace_file: Path, tmp_path: Path) -> None:
    words = ["simulate", "--trace", str(trace_file), "--policy", "solo-d", "--seeds", "3"]
    summary = json.loads(CliRunner().invoke(app, [*words, "--json", "--plot", str(tmp_path / "cost.svg")]).stdout)
    assert summary.keys() >= ISSUE_KEYS
    assert [run["seed"] for run in summary["runs"]] == [0, 1, 2]
    assert summary["total_cost"] == pytest.approx(sum(run["total_cost"] for run in summary["runs"]) / 3)
    assert (tmp_path / "cost.svg").read_text().startswith("<svg")
    assert "mean of 3 seeds" in CliRunner().invoke(app, words).stdout


def test_a_made_trace_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    answer = CliRunner().invoke(app, ["trace", "--jobs", "20", "--seed", "5", "--like", "heavy", "-o", str(path)])
    assert "20 jobs" in answer.stdout and len(read_trace(path)) == 20
    assert (
        CliRunner().invoke(app, ["trace", "--jobs", "20", "--seed", "5", "--like", "heavy"]).stdout == path.read_text()
    )


@pytest.mark.parametrize("words", [["--policy", "rollmx"], ["--jobs", "xl"], ["--sizes", "huge"]])
def test_unknown_names_are_refused(words: list[str], trace_file: Path) -> None:
    answer = CliRunner().invoke(app, ["simulate", "--trace", str(trace_file), *words])
    assert isinstance(answer.exception, ConfigError)


@pytest.mark.parametrize("name", ["gavel+", "Gavel", "random", "most-idle", "opt", "regroup"])
def test_the_command_knows_the_policies_of_the_papers(name: str, trace_file: Path) -> None:
    found = simulated(trace_file, "--policy", name)
    assert found["jobs"] == simulated(trace_file, "--policy", "solo-d")["jobs"]
    assert found["total_cost"] > 0


def test_without_the_experiments_their_policies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollweave.mux.baselines.setups.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="'opt' is unknown: there are: rollmux, default, per-iteration, solo-d, colo"):
        setup("opt", 0)


def test_names_are_taken_as_people_write_them() -> None:
    assert isinstance(setup("Solo-D", 0).decider, Solo) and isinstance(setup("veRL", 0).decider, Solo)


def test_recorded_traces_keep_every_slo_under_rollmux() -> None:
    for file in sorted(recorded_traces().glob("*.csv")):
        assert simulate(TraceScenario(read_trace(file)), "rollmux", 0).slo_attainment == 1.0


@pytest.mark.slow
def test_recorded_traces_keep_every_slo_for_less_under_default() -> None:
    for file in sorted(recorded_traces().glob("*.csv")):
        world = TraceScenario(read_trace(file)[:150], JobMix("rh"))
        ours, rollmux = (simulate(world, policy, 0) for policy in ("default", "rollmux"))
        assert ours.slo_attainment == 1.0
        assert ours.ledger.dollars < 0.95 * rollmux.ledger.dollars
