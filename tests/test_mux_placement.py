"""Algorithm 1: the cheapest place that keeps every promise, and a reason for every other one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rollweave.errors import ConfigError
from rollweave.mux.decisions.invariants import PlanError, check_state
from rollweave.mux.decisions.plan import Plan, PlanStep
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.group import CoGroup, phases_at
from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.model.policy import DEFAULT, PER_ITERATION, ROLLMUX, MuxPolicy, policy
from rollweave.mux.model.slo import assess, limit
from rollweave.mux.model.state import ClusterState, rollout_pool, train_pool


def job(name: str, roll: float, train: float, slo: float = 1.5, iters: float = 100, **more: Any) -> MuxJob:
    return MuxJob(name, JobProfile(roll, train, **more), slo, iters)


def admit(state: ClusterState, newcomer: MuxJob, policy: MuxPolicy = ROLLMUX, now: float = 0.0) -> Plan:
    scheduler = Scheduler(policy)
    plan = scheduler.arrive(state, newcomer, now)
    scheduler.apply(state, plan, now, newcomer)
    check_state(state, policy)
    return plan


def test_direct_packing_then_scaling_then_a_new_group() -> None:
    state = ClusterState()
    assert admit(state, job("a", 150, 100)).steps[0].kind == "open"
    direct = admit(state, job("b", 90, 120)).steps[0]
    assert (direct.kind, direct.nodes, direct.new_nodes) == ("place", (0,), ())
    scaled = admit(state, job("c", 240, 20)).steps[0]
    assert (scaled.kind, scaled.nodes, scaled.new_nodes) == ("place", (1,), (1,))
    alone = admit(state, job("d", 20, 30))
    assert alone.steps[0].kind == "open"
    assert [str(rejection) for rejection in alone.rejections] == ["group 1: SLO of job d: 270 s > 75 s"]
    assert state.cost() == pytest.approx(3 * 14.80 + 2 * 42.24)


def test_every_refusal_has_its_numbers() -> None:
    state = ClusterState()
    admit(state, job("a", 156, 102, slo=2.0))
    admit(state, job("b", 156, 102, slo=2.0))
    plan = admit(state, job("c", 10, 10))
    assert str(plan.rejections[0]) == "group 1: saturated: T_load 312 s >= T_cycle 258 s"
    assert "not group 1: saturated" in plan.explain() and "new group, +$57.04/h" in plan.explain()


@pytest.mark.parametrize(("free", "kind"), [(100.0, "open"), (100.1, "place")])
def test_memory_that_would_be_used_to_the_last_byte_is_refused(free: float, kind: str) -> None:
    """Algorithm 1 rejects `mem >= free`."""
    state = ClusterState(train=train_pool(host_gb=100 + free))
    admit(state, job("a", 150, 100, mem_train=100))
    plan = admit(state, job("b", 90, 120, mem_train=100))
    assert plan.steps[0].kind == kind
    assert kind == "place" or str(plan.rejections[0]) == "group 1: train memory: 100 GB >= 100 GB free"


def test_full_rollout_memory_forces_scaling() -> None:
    state = ClusterState(rollout=rollout_pool(host_gb=1000))
    admit(state, job("a", 150, 100, mem_roll=600))
    assert admit(state, job("b", 90, 120, mem_roll=600)).steps[0].new_nodes == (1,)


def test_pools_without_room_make_a_job_wait_and_a_departure_lets_it_in() -> None:
    state = ClusterState(rollout_pool(limit=1), train_pool(limit=1))
    admit(state, job("a", 150, 100, slo=1.0))
    waits = admit(state, job("b", 150, 100, slo=1.0))
    assert [step.kind for step in waits.steps] == ["wait"] and "b" not in state.jobs
    Scheduler().apply(state, Scheduler().depart(state, "a", 10.0), 10.0)
    assert state.cost() == 0
    assert admit(state, job("b", 150, 100, slo=1.0), now=10.0).steps[0].nodes == (0,)


def test_a_gang_takes_just_enough_new_nodes() -> None:
    state = ClusterState()
    admit(state, job("a", 150, 100, slo=2.0))
    step = admit(state, job("b", 100, 100, slo=2.0, n_roll=2)).steps[0]
    assert step.nodes == (0, 1) and step.new_nodes == (1,)


def test_a_job_in_a_wider_group_trains_on_all_of_its_nodes() -> None:
    state = ClusterState()
    admit(state, job("wide", 300, 100, n_train=2))
    admit(state, job("narrow", 100, 200, slo=1.5))
    assert state.groups[1].phases["narrow"].train == 100 and state.jobs["narrow"].solo_s == 300


def test_a_plan_that_breaks_an_invariant_is_refused_and_changes_nothing() -> None:
    state = ClusterState()
    admit(state, job("a", 150, 100, slo=1.1))
    before = json.dumps(asdict(state))
    late = job("b", 900, 100, slo=2.0)
    plan = Plan((PlanStep("place", "b", 1, "by hand", (0,)),))
    with pytest.raises(PlanError, match="invariant 6: job a of group 1 needs 1050 s, has 275 s"):
        Scheduler().apply(state, plan, 0.0, late)
    heavy = job("c", 90, 120, slo=2.0, mem_roll=4000)
    with pytest.raises(PlanError, match="invariant 4: rollout node 0 holds 4000 GB of 2048 GB"):
        Scheduler().apply(state, Plan((PlanStep("place", "c", 1, "by hand", (0,)),)), 0.0, heavy)
    with pytest.raises(PlanError, match="invariant 2"):
        Scheduler().apply(state, Plan((PlanStep("place", "d", 1, "", (0,)),)), 0.0, job("d", 9, 9, slo=2.0, n_roll=2))
    assert json.dumps(asdict(state)) == before


def test_a_state_survives_json() -> None:
    state = ClusterState()
    for number in range(6):
        admit(state, job(f"{number}", 100 + number, 40, n_roll=1 + number % 2), DEFAULT, number * 10.0)
    again = TypeAdapter(ClusterState).validate_python(json.loads(json.dumps(asdict(state))))
    assert again == state and again.groups[1].node_load == state.groups[1].node_load
    newcomer = job("x", 50, 60)
    assert Scheduler(DEFAULT).arrive(again, newcomer, 99.0) == Scheduler(DEFAULT).arrive(state, newcomer, 99.0)


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="rollmux, default, per-iteration"):
        policy("best")


def test_rollmux_has_every_extension_off() -> None:
    assert MuxPolicy() == ROLLMUX
    off = (ROLLMUX.consolidation, ROLLMUX.integrated_cost, ROLLMUX.order_search, ROLLMUX.adaptive, ROLLMUX.banking)
    assert not any(off) and ROLLMUX.fifo == "off" and ROLLMUX.prune_saturated


profiles = st.tuples(
    st.integers(20, 400), st.integers(20, 400), st.sampled_from([1, 1, 2]), st.floats(1, 2), st.integers(0, 900)
)


def drawn(number: int, values: tuple[int, int, int, float, int]) -> MuxJob:
    roll, train, width, slo, memory = values
    return job(f"{number}", roll, train, slo, n_train=width, mem_roll=memory, mem_train=memory)


@settings(max_examples=80, deadline=None)
@given(st.lists(profiles, min_size=2, max_size=9), st.booleans())
def test_placement_is_the_cheapest_feasible_one_found_by_enumeration(
    values: list[tuple[int, int, int, float, int]], prune: bool
) -> None:
    chosen = replace(ROLLMUX, prune_saturated=prune)
    state = ClusterState(rollout_pool(host_gb=1200), train_pool(host_gb=2000))
    for number, drawn_values in enumerate(values):
        newcomer = drawn(number, drawn_values)
        expected = enumerated(state, newcomer, chosen)
        step = admit(state, newcomer, chosen).steps[0]
        assert (step.kind, step.group if step.kind == "place" else 0, step.nodes) == expected


def enumerated(state: ClusterState, newcomer: MuxJob, chosen: MuxPolicy) -> tuple[str, int, tuple[int, ...]]:
    """Every group, every node, one new node; feasible by running the whole group through `assess`."""
    own = state.rollout.price + state.train.price * newcomer.profile.n_train
    best: tuple[float, str, int, tuple[int, ...]] | None = None
    fresh = state.rollout.peek(1)
    jobs = {**state.jobs, newcomer.id: newcomer}
    for group in state.groups.values():
        for node in (*group.nodes, fresh[0]):
            trial = group.copy()
            trial.add(newcomer.id, phases_at(newcomer.profile, group.width), (node,))
            price = state.rollout.price if node == fresh[0] else 0.0
            if (best is None or price < best[0]) and fits(state, group, trial, node, newcomer, jobs, chosen):
                best = (price, "place", group.id, (node,))
    if best is None or own < best[0]:
        best = (own, "open", 0, fresh)
    return best[1:]


def fits(
    state: ClusterState,
    group: CoGroup,
    trial: CoGroup,
    node: int,
    newcomer: MuxJob,
    jobs: dict[str, MuxJob],
    chosen: MuxPolicy,
) -> bool:
    if (chosen.prune_saturated and group.saturated) or len(trial.pins) > chosen.max_group:
        return False
    if newcomer.profile.mem_roll >= state.rollout.host_gb - group.node_mem.get(node, 0.0):
        return False
    if newcomer.profile.mem_train >= state.train.host_gb - group.train_mem:
        return False
    return assess(trial, jobs, 0.0, chosen, "rr").late is None


def test_banking_spends_what_was_saved() -> None:
    state = ClusterState()
    admit(state, job("a", 100, 100, slo=1.2, iters=100), DEFAULT)
    early = limit(state.jobs["a"], 0.0, replace(DEFAULT, guard_iters=0))
    late = limit(state.jobs["a"], 10_000.0, replace(DEFAULT, guard_iters=0))
    assert early == pytest.approx(240 * 100 / 101)  # one iteration for the wait for its first turn
    assert late == pytest.approx(280)
    assert limit(state.jobs["a"], 10_000.0, PER_ITERATION) == pytest.approx(240)


def test_fifo_lets_short_and_long_jobs_share_train_nodes() -> None:
    plans = {}
    for name, chosen in (("rollmux", ROLLMUX), ("default", DEFAULT)):
        state = ClusterState()
        admit(state, job("long", 500, 100, slo=1.5, iters=300), chosen)
        plans[name] = admit(state, job("short", 120, 30, slo=1.9, iters=900), chosen)
        assert state.jobs["short"].finish_at() <= state.jobs["short"].deadline
    assert plans["rollmux"].steps[0].kind == "open"
    assert [step.kind for step in plans["default"].steps] == ["place", "arrange"]
    assert plans["default"].steps[1].mode == "fifo"
