"""Engines that join, leave and die in the middle of a run, on the virtual clock: the others go on."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.world.durations import constant, lognormal
from tests.world.engine import SyncModel
from tests.world.environment import EnvironmentModel
from tests.world.faults import Outage
from tests.world.hosts import TransportModel
from tests.world.world import SimulatedRun, World

from rollweave.clock import DeadlineExceeded
from rollweave.config.job import Job
from test_pipelines_virtual import many
from virtual_oracles import check_everything
from virtual_worlds import make_job, run

SLOW_UPDATES = SyncModel(publish=constant(0.2), prepare=lognormal(0.8, 0.7), commit=lognormal(0.4, 0.7))
"""Long against a turn, so that engines come and go while weights travel."""

PIPELINES: list[dict[str, Any]] = [
    {"type": "sync"},
    {"type": "sync+"},
    {"type": "one_off"},
    {"type": "rollart", "alpha": 0},
    {"type": "rollart", "alpha": 1},
    {"type": "rollart", "alpha": 1.5, "in_flight": "restart_turn"},
    {"type": "rollart", "alpha": 2, "policy": "requeue"},
]

LOSSY = TransportModel(lognormal(0.05, 1.0), drop_rate=0.1, duplicate_rate=0.1)
comings_and_goings = st.lists(
    st.builds(
        Outage,
        st.sampled_from(["engine", "engine", "join", "leave"]),
        st.integers(0, 5),
        st.floats(0.0, 20.0),
        st.sampled_from([0.0, 0.5, 4.0, 60.0]),
    ),
    max_size=6,
)


@many(150)
@given(
    comings_and_goings,
    st.sampled_from(PIPELINES),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([TransportModel(), LOSSY]),
    st.booleans(),
)
@example(  # a report that arrives before the move of its trajectory
    [Outage("engine", 0, 1.5, 0.5), Outage("engine", 1, 1.5, 0.5)], {"type": "one_off"}, 2, 1, LOSSY, False
)
@example(  # a host's own first choice is heard of after that engine has died
    [Outage("engine", 0, at, 0.0) for at in (6.0, 12.0, 15.0)], {"type": "sync"}, 1, 1, LOSSY, False
)
def test_engines_come_and_go_nothing_is_lost_and_the_run_ends(
    outages: list[Outage],
    pipeline: dict[str, Any],
    engines: int,
    hosts: int,
    transport: TransportModel,
    together: bool,
) -> None:
    job = make_job(pipeline, seed=len(outages), prompt_replication=not together)
    world = World(
        engines=engines,
        hosts=hosts,
        transport=transport,
        outages=tuple(outages),
        sync=SLOW_UPDATES,
        token_seconds=constant(0.1),
        environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.2, 1.0)),
    )
    result = run(job, world)
    check_everything(job, world, result)
    routes_lead_to_engines_that_serve(result)


@many(100)
@given(
    comings_and_goings,
    st.sampled_from(PIPELINES),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([TransportModel(), LOSSY]),
)
def test_prefill_and_decode_engines_come_and_go_and_the_books_stay_exact(
    outages: list[Outage],
    pipeline: dict[str, Any],
    engines: int,
    prefill: int,
    hosts: int,
    transport: TransportModel,
) -> None:
    job = make_job(pipeline, seed=len(outages))
    world = World(
        engines=engines,
        prefill=prefill,
        hosts=hosts,
        transport=transport,
        outages=tuple(outages),
        sync=SLOW_UPDATES,
        token_seconds=constant(0.1),
        environment=EnvironmentModel(turns=lambda rng: rng.randint(1, 5), step_seconds=lognormal(0.2, 1.0)),
    )
    result = run(job, world)
    check_everything(job, world, result)
    routes_lead_to_engines_that_serve(result)
    assert all(not str(event.data["engine"]).startswith("prefill") for event in result.recorder.named("route"))


def routes_lead_to_engines_that_serve(result: SimulatedRun) -> None:
    """Every episode is placed when it is leased, if an engine is open, and the driver places none on a closed one."""
    serving: set[str] = set()
    placed: set[str] = set()
    for event in result.recorder.events:
        data: Any = event.data
        if (event.name == "engine.join" and event.time == 0.0) or event.name == "engine.serve":
            serving.add(data["engine"])
        elif event.name == "engine.gone":
            serving.discard(data["engine"])
        elif event.name == "fleet.use":
            serving = set(data["engines"])
        elif event.name == "route":
            if data["reason"] in ("least held", "its group's") and data["attempt"] not in placed:
                assert data["engine"] in serving, event
            placed.add(data["attempt"])
        elif event.name == "trajectory.end" and data["turns"]:
            assert data["id"] in placed, "it was answered by an engine that was never chosen"


def patient(**sections: Any) -> Job:
    return make_job({"type": "rollart", "alpha": 1}, 3, **sections)


@pytest.mark.parametrize("at", [0.05, 1.0, 1.5, 2.2, 2.9, 3.4, 5.0])
@pytest.mark.parametrize("sync", [SyncModel(), SLOW_UPDATES])
def test_a_dead_engine_holds_up_neither_batches_nor_updates(at: float, sync: SyncModel) -> None:
    """Its successor comes ten thousand seconds later. Before this, the next commit waited for it."""
    world = World(engines=2, outages=(Outage("engine", 0, at, 1e4),), sync=sync, token_seconds=constant(0.1))
    result = run(patient(), world)
    check_everything(patient(), world, result)
    assert result.seconds < 100
    assert [event.data["engine"] for event in result.recorder.named("engine.gone")] == ["engine-0/1"]


def test_an_engine_that_joins_catches_up_and_then_takes_its_share() -> None:
    world = World(engines=1, outages=(Outage("join", 0, 4.0),), sync=SLOW_UPDATES, token_seconds=constant(0.1))
    result = run(patient(), world)
    check_everything(patient(), world, result)
    (served,) = result.recorder.named("engine.serve")
    assert served.time > 4.0 and served.data["version"] == len(
        [event for event in result.recorder.named("weights.commit") if event.time <= served.time]
    )
    taken = [event for event in result.recorder.named("route") if event.data["engine"] == "engine-1/1"]
    assert taken and min(event.time for event in taken) >= served.time


def test_an_engine_that_leaves_hands_over_what_it_has_begun() -> None:
    world = World(engines=2, outages=(Outage("leave", 0, 1.05),), token_seconds=constant(0.1))
    result = run(patient(), world)
    check_everything(patient(), world, result)
    assert result.witness.redrawn.total() == 0, "nothing was sampled twice"
    moved = [event for event in result.recorder.named("route") if str(event.data["reason"]).startswith("moved")]
    assert moved and {event.data["engine"] for event in moved} == {"engine-1/1"}


def test_with_all_engines_gone_episodes_wait_for_the_next_one() -> None:
    world = World(engines=1, outages=(Outage("engine", 0, 1.05, 500.0),), token_seconds=constant(0.1))
    result = run(patient(), world)
    check_everything(patient(), world, result)
    assert result.seconds > 500
    assert not [event for event in result.recorder.named("attempt.end") if event.data["end"] == "infra-failed"]


def test_without_a_next_one_the_deadline_of_the_job_ends_the_run() -> None:
    world = World(engines=1, outages=(Outage("engine", 0, 1.05, inf),), token_seconds=constant(0.1))
    with pytest.raises(ExceptionGroup) as raised:
        run(patient(deadlines={"get_batch": 300.0}), world)
    assert raised.group_contains(DeadlineExceeded, match="trainer waits for batch", depth=None)
