"""What happens after the placement: departures, consolidation, drift, and the way out of a FIFO group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollweave.mux.decisions.invariants import check_state
from rollweave.mux.decisions.plan import Plan
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.model.period import fifo_means, fifo_worst
from rollweave.mux.model.policy import DEFAULT, ROLLMUX, MuxPolicy
from rollweave.mux.model.state import ClusterState

CONSOLIDATING = replace(ROLLMUX, consolidation=True)


def admit(
    state: ClusterState, policy: MuxPolicy, name: str, roll: float, train: float, slo: float, iters: float
) -> None:
    scheduler, job = Scheduler(policy), MuxJob(name, JobProfile(roll, train), slo, iters)
    scheduler.apply(state, scheduler.arrive(state, job, 0.0), 0.0, job)


def depart(state: ClusterState, policy: MuxPolicy, name: str, now: float) -> Plan:
    plan = Scheduler(policy).depart(state, name, now)
    Scheduler(policy).apply(state, plan, now)
    check_state(state, policy)
    return plan


def two_half_empty_groups(policy: MuxPolicy) -> ClusterState:
    """a and b share, c and d share; when b and d are gone, a and c could share too."""
    state = ClusterState()
    for name in "abcd":
        admit(state, policy, name, 100, 100, 1.3, 400)
    assert [group.jobs for group in state.groups.values()] == [("a", "b"), ("c", "d")]
    return state


def test_a_departure_gives_back_what_nobody_uses() -> None:
    state = two_half_empty_groups(ROLLMUX)
    depart(state, ROLLMUX, "b", 1000.0)
    depart(state, ROLLMUX, "d", 1000.0)
    assert state.cost() == pytest.approx(2 * 57.04)
    depart(state, ROLLMUX, "a", 2000.0)
    assert state.cost() == pytest.approx(57.04) and list(state.groups) == [2]


def test_consolidation_joins_what_departures_left_alone() -> None:
    state = two_half_empty_groups(CONSOLIDATING)
    depart(state, CONSOLIDATING, "b", 10_000.0)
    plan = depart(state, CONSOLIDATING, "d", 10_000.0)
    assert [step.kind for step in plan.steps] == ["leave", "move"]
    assert "empties group" in plan.steps[1].why
    assert state.cost() == pytest.approx(57.04)
    moved = state.jobs[plan.steps[1].job]
    assert moved.resumes_at == 10_000 + moved.profile.move_s and moved.finish_at() <= moved.deadline


@pytest.mark.parametrize("why", ["tight", "short", "fresh"])
def test_nobody_moves_who_would_be_late_or_nearly_done_or_just_moved(why: str) -> None:
    state = two_half_empty_groups(CONSOLIDATING)
    depart(state, CONSOLIDATING, "b", 10_000.0)
    for name in "acd":
        job = state.jobs[name]
        if why == "tight":
            job.deadline = job.finish_at() + 1
        elif why == "short":
            job.report(job.n_iters - 2, 10_000.0)
        else:
            job.moved_at = 9_000.0
    assert [step.kind for step in depart(state, CONSOLIDATING, "d", 10_000.0).steps] == ["leave"]


def test_a_failed_job_leaves_at_once_and_comes_back_with_its_progress() -> None:
    state = two_half_empty_groups(ROLLMUX)
    scheduler = Scheduler()
    done = state.jobs["a"].done_at(20_000.0)
    scheduler.apply(state, scheduler.depart(state, "a", 20_000.0, "failed"), 20_000.0)
    assert "a" not in state.jobs and state.jobs["b"].pace == 200
    again = MuxJob("a", JobProfile(100, 100), 1.3, 400, done=float(int(done)))
    scheduler.apply(state, scheduler.arrive(state, again, 25_000.0), 25_000.0, again)
    left = state.jobs["a"].n_iters - int(done)
    assert state.jobs["a"].deadline == pytest.approx(25_000 + 1.3 * left * 200)


def test_rollmux_stops_and_resubmits_a_job_that_drifts_into_saturation() -> None:
    state = ClusterState()
    admit(state, ROLLMUX, "a", 150, 100, 2.0, 100)
    admit(state, ROLLMUX, "b", 90, 120, 2.0, 100)
    plans = [Scheduler().observe(state, "b", 90, 160, 1000.0 * number) for number in range(1, 6)]
    assert [bool(plan) for plan in plans] == [False] * 4 + [True]
    step = plans[-1].steps[0]
    assert (step.kind, step.t_roll, step.t_train) == ("resubmit", 90, 160)
    assert step.why == "drifted to 90 + 160 s: T_load 260 s >= T_cycle 250 s"
    Scheduler().apply(state, plans[-1], 5000.0)
    assert list(state.jobs) == ["a"]


def test_no_drift_no_plan() -> None:
    state = two_half_empty_groups(ROLLMUX)
    for policy in (ROLLMUX, DEFAULT):
        assert not any(Scheduler(policy).observe(state, "a", 101, 99, 500.0 * number) for number in range(1, 9))


def test_an_adaptive_policy_replans_and_moves_the_victim_of_a_drift() -> None:
    state = ClusterState()
    admit(state, DEFAULT, "a", 150, 100, 1.2, 200)
    admit(state, DEFAULT, "b", 90, 120, 1.9, 200)
    assert len(state.groups) == 1
    plan = Plan()
    for number in range(1, 8):
        plan = Scheduler(DEFAULT).observe(state, "b", 300, 300, 300.0 * number)
        if plan:
            Scheduler(DEFAULT).apply(state, plan, 300.0 * number)
            break
    assert [step.kind for step in plan.steps][:2] == ["retime", "move"]
    assert len(state.groups) == 2 and state.jobs["a"].finish_at() <= state.jobs["a"].deadline


def test_estimates_fall_too_and_make_room() -> None:
    state = ClusterState()
    admit(state, DEFAULT, "a", 400, 300, 1.1, 200)
    for number in range(1, 7):
        plan = Scheduler(DEFAULT).observe(state, "a", 100, 60, 500.0 * number)
        Scheduler(DEFAULT).apply(state, plan, 500.0 * number)
    assert (state.jobs["a"].profile.t_roll, state.jobs["a"].profile.t_train) == (100, 60)
    assert state.jobs["a"].solo_s == 700


def test_the_way_out_of_a_fifo_group_is_taken_before_it_closes() -> None:
    """The simulation promised too much: the job did not advance. It leaves while it can still make it alone."""
    state = ClusterState()
    admit(state, DEFAULT, "long", 500, 100, 1.5, 300)
    admit(state, DEFAULT, "short", 120, 30, 1.9, 900)
    assert state.groups[1].mode == "fifo"
    short, now = state.jobs["short"], 0.0
    while state.home["short"] == 1:
        now += fifo_worst(state.groups[1], "short")
        state.jobs["short"].report(0.0, now)
        plan = Scheduler(DEFAULT).observe(state, "short", 120, 30, now)
        Scheduler(DEFAULT).apply(state, plan, now)
    assert state.groups[2].jobs == ("short",) and now > 50_000
    assert short.pace == 150 and short.finish_at() <= short.deadline


def fifo_group() -> ClusterState:
    """Four jobs on nodes of their own around one train node. Without d, c meets b's long train phase every time: its
    mean iteration rises from 380 s to 473 s."""
    state = ClusterState()
    for number, (roll, train) in enumerate(((560, 150), (60, 210), (290, 50), (580, 90))):
        name = "abcd"[number]
        job = MuxJob(name, JobProfile(roll, train), 2.0, 100, deadline=1e9)
        group = state.groups.setdefault(1, CoGroup(1, (0,), "fifo"))
        group.add(name, phases_at(job.profile, 1), (number,))
        state.jobs[name], state.home[name] = job, 1
    for name, pace in fifo_means(state.groups[1]).items():
        state.jobs[name].pace = pace
    state.rollout.take((0, 1, 2, 3))
    state.train.take((0,))
    return state


def test_a_leaver_whose_turn_the_others_rhythm_depends_on_leaves_it_behind() -> None:
    state = fifo_group()
    fifo_only = replace(DEFAULT, consolidation=False)
    job = state.jobs["c"]
    assert job.pace == pytest.approx(380)
    job.deadline = 100 * 380 + fifo_worst(state.groups[1], "c") + job.profile.move_s
    plan = depart(state, fifo_only, "d", 0.0)
    assert [step.kind for step in plan.steps] == ["reserve"]
    assert state.groups[1].phantoms == ("d",) and job.pace == pytest.approx(380)
    assert state.rollout.used == 3 and state.groups[1].nodes == (0, 1, 2) and "d" not in state.jobs
    # With the next change the reservation is gone.
    depart(state, fifo_only, "b", 10.0)
    assert state.groups[1].phantoms == () and state.groups[1].jobs == ("a", "c")


def test_a_leaver_nobody_depends_on_simply_leaves() -> None:
    state = fifo_group()
    plan = depart(state, replace(DEFAULT, consolidation=False), "d", 0.0)
    assert plan.steps[0].kind == "leave" and state.groups[1].phantoms == ()
