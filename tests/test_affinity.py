"""Affinity: what is learned of tasks and pools, what is decided from it, and that nothing depends on it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.config.cluster import ClusterConfig
from rollweave.engines.protocol import EngineStats
from rollweave.engines.torch.step_time import StepTime
from rollweave.fleet.affinity import UNTRIED_STEPS, Affinity, Figures, PoolSpeed, TaskProfile
from rollweave.fleet.fleet import EngineEntry, EngineInfo, Fleet, FleetUpdate, FleetView
from rollweave.fleet.router import Route, RouteAsk, choose
from rollweave.observability.catalogue import check
from rollweave.observability.events import MemoryRecorder
from rollweave.observability.report import sections
from rollweave.seeds import generator
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import scenario, simulate
from rollweave.tasks import Task
from rollweave.trajectory import Outcome, Span, Trajectory, Turn, token_ids

READ, WRITE = TaskProfile(4000.0, 20.0, 8.0, 1.0), TaskProfile(100.0, 900.0, 1.0, 0.0)
COMPUTE, STREAM = PoolSpeed(1e-4, 0.02, 1e-3, 0.03), PoolSpeed(8e-4, 0.005, 3e-4, 0.008)
FIGURES = Figures({"read": READ, "write": WRITE}, {"compute": COMPUTE, "stream": STREAM})


def view_of(pools: dict[str, int], figures: Figures | None = FIGURES) -> FleetView:
    engines = [
        EngineInfo(f"{pool}-{number}/1", "serving", (), None, pool=pool)
        for pool, count in pools.items()
        for number in range(count)
    ]
    return FleetView(FleetUpdate(1, tuple(engines), figures))


def routed(view: FleetView, task: str, context: int = 0) -> Route:
    route = choose(RouteAsk("1.0.0", task, context=context), view)
    assert route is not None
    return route


def pool_of(view: FleetView, route: Route) -> str:
    return view.engines[route.engine].pool


# ------------------------------------------------------------------------------------------------------ deciding


def test_each_task_goes_to_the_pool_that_suits_it_and_the_reason_says_so() -> None:
    view = view_of({"compute": 2, "stream": 2})
    read, write = routed(view, "read"), routed(view, "write")
    assert (pool_of(view, read), pool_of(view, write)) == ("compute", "stream")
    assert write.reason == "write to stream: decode share 0.90, expected 4.85 s against 18.9 s on compute"
    own, delay = write.inputs["expected"]["stream"]  # type: ignore[call-overload, index]
    assert own + delay == pytest.approx(4.85, abs=0.01) and write.expected == pytest.approx(own, abs=1e-3)


def test_what_the_pool_holds_counts() -> None:
    view = view_of({"compute": 1, "stream": 1})
    places = Counter[str]()
    for _ in range(200):
        route = routed(view, "write")
        view.hold(route.engine, +1, "write")
        places[pool_of(view, route)] += 1
    assert places["stream"] > places["compute"] > 10, "a pool that has no work helps, though it is slower"


def test_a_context_that_stays_behind_is_computed_again_where_that_is_quick() -> None:
    view = view_of({"compute": 1, "stream": 1})
    assert pool_of(view, routed(view, "write")) == "stream"
    assert pool_of(view, routed(view, "write", context=60_000)) == "compute"


def test_within_a_pool_trajectories_are_weighed() -> None:
    """Five that wait for their environments take less of an engine than one that is sampled all the time."""
    idle = TaskProfile(10.0, 1.0, 1.0, 1000.0)
    view = view_of({"a": 2, "b": 2}, Figures({"idle": idle, "write": WRITE}, {"a": STREAM, "b": COMPUTE}))
    for _ in range(5):
        view.hold("a-0/1", +1, "idle")
    view.hold("a-1/1", +1, "write")
    assert routed(view, "write").engine == "a-0/1"


def test_declared_tasks_decide_before_anything_is_compared() -> None:
    engines = (
        EngineInfo("a-0/1", "serving", ("write",), None, pool="a"),
        EngineInfo("b-0/1", "serving", (), None, pool="b"),
    )
    view = FleetView(FleetUpdate(1, engines, Figures({"write": WRITE}, {"a": COMPUTE, "b": STREAM})))
    assert (routed(view, "write").engine, routed(view, "write").reason) == ("a-0/1", "least held")
    assert routed(view, "other").engine == "b-0/1"


@pytest.mark.parametrize(
    "figures",
    [
        None,
        Figures(),
        Figures({}, FIGURES.pools),
        Figures(FIGURES.tasks, {}),
    ],
    ids=["least_held", "nothing known", "no task known", "no pool known"],
)
def test_without_figures_the_engine_that_holds_the_fewest_is_chosen(figures: Figures | None) -> None:
    view = view_of({"compute": 1, "stream": 1}, figures)
    view.hold("compute-0/1", +1, "read")
    assert routed(view, "read").engine == "stream-0/1" and routed(view, "read").reason.startswith("least held")


seconds = st.floats(1e-6, 1.0)
speeds = st.builds(PoolSpeed, seconds, seconds, seconds, seconds)
profiles = st.builds(TaskProfile, *[st.floats(1.0, 1e4)] * 3, st.floats(0.0, 10.0))
some_figures = st.builds(
    Figures,
    st.fixed_dictionaries({"x": profiles, "y": profiles}),
    st.fixed_dictionaries({"a": speeds, "b": speeds, "c": speeds}),
)
holds = st.lists(st.tuples(st.sampled_from(["a-0/1", "b-0/1", "b-1/1", "c-0/1"]), st.sampled_from("xy")), max_size=40)


@given(some_figures, holds, st.sampled_from("xy"))
@settings(deadline=None)
def test_no_pool_would_have_been_better(figures: Figures, held: list[tuple[str, str]], task: str) -> None:
    view = view_of({"a": 1, "b": 2, "c": 1}, figures)
    for engine, other in held:
        view.hold(engine, +1, other)
    route = routed(view, task)
    chosen = figures.expected(task, pool_of(view, route), view.mix(route.engine)).total
    for pool in "abc":
        there = figures.expected(task, pool, view.mix(view.least_held(task, pool))).total
        assert chosen <= there
    assert routed(view, task) == route, "the same view gives the same answer"


@given(some_figures, st.sampled_from("xy"))
@settings(max_examples=30, deadline=None)
def test_no_pool_starves(figures: Figures, task: str) -> None:
    """However slow a pool is, the others are slower once they hold enough."""
    pools = {name: speed._replace(request=max(speed.request, 1e-3)) for name, speed in figures.pools.items()}
    view = view_of(dict.fromkeys(pools, 1), replace(figures, pools=pools))
    slowest = max(
        figures.expected(task, pool, {}).total / min(figures.expected(task, other, {}).total for other in pools)
        for pool in pools
    )
    if slowest > 100:
        return  # it would take too many
    for _ in range(20_000):
        view.hold(routed(view, task).engine, +1, task)
        if len([1 for held in view.held.values() if held]) == len(pools):
            return
    raise AssertionError(f"a pool got nothing: {view.held}")


# ------------------------------------------------------------------------------------------------------ learning


def counters(
    speed: PoolSpeed, batches: list[int], contexts: int = 1000, since: EngineStats | None = None
) -> EngineStats:
    """An engine of this speed after a hundred steps with each of these numbers of requests."""
    stats = since or EngineStats()
    decoded = sum(100 * (speed.step + speed.request * batch) for batch in batches)
    prefill = contexts * speed.prefill
    return replace(
        stats,
        steps=stats.steps + 100 * len(batches),
        sampled_tokens=stats.sampled_tokens + 100 * sum(batches),
        prefilled_tokens=stats.prefilled_tokens + contexts,
        prefill_seconds=stats.prefill_seconds + prefill,
        busy_seconds=stats.busy_seconds + prefill + decoded,
    )


def test_the_speed_of_a_pool_is_found_in_what_its_engines_count() -> None:
    learner = Affinity()
    engines = {f"e{batch}": ("p", counters(STREAM, [batch])) for batch in (4, 16, 40)}
    learner.step(engines)
    found = learner.figures.pools["p"]
    assert found.prefill == pytest.approx(STREAM.prefill)
    assert found.step + 20 * found.request == pytest.approx(STREAM.step + 20 * STREAM.request, rel=0.05)
    assert found.request == pytest.approx(STREAM.request, rel=0.15)


def test_engines_that_always_have_as_many_requests_leave_the_slope_open() -> None:
    learner = Affinity()
    learner.step({"e": ("p", counters(STREAM, [20]))})
    found = learner.figures.pools["p"]
    assert found.step + 20 * found.request == pytest.approx(STREAM.step + 20 * STREAM.request)
    assert found.request == pytest.approx(0.5 * found.usual / 20)


def test_a_pool_that_changes_is_known_anew_after_a_few_steps() -> None:
    learner, stats = Affinity(), EngineStats()
    for step in range(30):
        stats = counters(STREAM if step < 20 else COMPUTE, [8, 24], since=stats)
        learner.step({"e": ("p", stats)})
        if step in (19, 25):
            found = learner.figures.pools["p"]
            now = STREAM if step == 19 else COMPUTE
            assert found.prefill == pytest.approx(now.prefill, rel=1.0 if step == 25 else 0.05)
    assert learner.figures.pools["p"].prefill == pytest.approx(COMPUTE.prefill, rel=0.3)


def test_lengths_that_change_are_learned() -> None:
    learner = Affinity()
    for number in range(400):
        learner.ended("write", "p", WRITE if number < 200 else WRITE._replace(sampled=100.0), 1.0, None)
        learner.step({})
        if number == 199:
            assert learner.figures.tasks["write"] == pytest.approx(WRITE)
    assert learner.figures.tasks["write"].sampled == pytest.approx(100, rel=0.5)


def test_a_pool_without_work_is_tried_now_and_then_by_one_trajectory() -> None:
    learner = Affinity()
    busy = {pool: counters(speed, [4, 16]) for pool, speed in (("compute", COMPUTE), ("stream", STREAM))}
    tried = list[int]()
    for task in ("read", "write"):
        learner.ended(task, "compute", FIGURES.tasks[task], 1.0, None)
    for step in range(3 * UNTRIED_STEPS):
        busy["compute"] = counters(COMPUTE, [4, 16], since=busy["compute"])
        learner.step({f"{pool}-0/1": (pool, stats) for pool, stats in busy.items()})
        view = view_of({"compute": 1, "stream": 1}, learner.figures)
        for _ in range(3):
            route = routed(view, "read")
            view.hold(route.engine, +1, "read")
            tried += [step] * (route.inputs.get("tried") == "stream")
    assert tried == [UNTRIED_STEPS, 2 * UNTRIED_STEPS], "one each time"


def test_a_pool_that_joins_later_is_tried_at_once() -> None:
    learner = Affinity()
    learner.ended("read", "compute", READ, 1.0, None)
    learner.step({"c": ("compute", counters(COMPUTE, [4, 16])), "n": ("new", EngineStats())})
    assert learner.figures.untried == {"new"}
    view = view_of({"compute": 1, "new": 1}, learner.figures)
    first = routed(view, "read")
    assert (pool_of(view, first), first.reason) == ("new", "read to new: to learn how fast it is")
    view.hold(first.engine, +1, "read")
    assert pool_of(view, routed(view, "read")) == "compute"


def trajectory(id: str, took: float) -> Trajectory:
    made = Trajectory(id, 1, 0, Task("t/1", "write", 0), outcome=Outcome.FINISHED)
    turn = Turn(Span(token_ids([1] * 10)), generate_seconds=took)
    made.turns.append(turn)
    return made


@pytest.mark.parametrize(("took", "noticed"), [(1.0, 0), (2.0, 0), (4.0, 1), (0.2, 1)])
def test_a_learner_that_is_wrong_is_noticed(took: float, noticed: int) -> None:
    fleet, recorder = Fleet(), MemoryRecorder()
    fleet.affinity = Affinity()
    fleet.listen(recorder)
    for pool in ("a", "b"):
        fleet.join(EngineEntry(f"{pool}-0/1", None, pool=pool))  # type: ignore[arg-type]
    for number in range(10):
        fleet.place(f"{number}.0.0", "a-0/1", None, "write", expected=1.0)
        fleet.learn_from(trajectory(f"{number}.0.0", took))
    fleet.learn_from_engines()
    events = [event.data for event in recorder.named("affinity.wrong")]
    assert [(data["task"], data["pool"], data["trajectories"]) for data in events] == [("write", "a", 10)] * noticed


def test_a_delay_of_all_pools_alike_is_no_mistake() -> None:
    learner = Affinity()
    for _ in range(10):
        learner.ended("write", "a", WRITE, took=50.0, expected=1.0)
        learner.ended("write", "b", WRITE, took=40.0, expected=1.0)
        learner.ended("read", "a", READ, took=400.0, expected=1.0)
    assert [(wrong.task, wrong.pool) for wrong in learner.step({})] == [("read", "a")]


# ------------------------------------------------------------------------------------------- in simulated runs


def task(name: str, turns: int, observation: int, answer: int) -> dict[str, Any]:
    fixed = {"turns": turns, "prompt_tokens": observation, "observation_tokens": observation, "answer_tokens": answer}
    return {"name": name, **{key: {"type": "constant", "value": value} for key, value in fixed.items()}}


def run(steps: int = 12, exchange_at: int | None = None, **changes: Any) -> SimulationResult:
    """Two pools of one device: `reader` is slow at answers, `writer` at contexts."""
    slow = {"reader": {"decode": 6.0}, "writer": {"prefill": 6.0}}
    pools = [
        {
            "name": name,
            "role": "rollout",
            "device": "H20",
            "count": 2,
            "slowdown": {**factors, "exchange_at": exchange_at},
        }
        for name, factors in slow.items()
    ]
    data = {
        "warmup": 2,
        "cluster": {"pools": [*pools, {"name": "train", "role": "train", "device": "H800", "count": 16}]},
        "workload": {"tasks": [task("read", 6, 2000, 8), task("write", 1, 100, 800)]},
        "rollout": {"groups_per_step": 8, "group_size": 4, **changes},
        "training": {"steps": steps},
    }
    return simulate(scenario(data))


def share(result: SimulationResult, step: int, task: str, pool: str) -> float:
    counts = {
        name: result.rows[step].get(f"served/trajectories/{task}/{name}", 0) or 0 for name in ("reader", "writer")
    }
    return float(counts[pool]) / max(1.0, float(counts["reader"]) + float(counts["writer"]))  # type: ignore[arg-type]


def test_a_run_finds_out_which_pool_suits_which_task_and_is_faster_for_it() -> None:
    auto, least = run(), run(affinity="least_held")
    assert auto.served["read"]["reader"] > 0.8 and auto.served["write"]["writer"] > 0.8
    assert abs(least.served["read"]["reader"] - 0.5) < 0.2
    assert auto.tokens_per_second > 1.3 * least.tokens_per_second


def test_a_run_follows_when_the_pools_change_places() -> None:
    result = run(steps=28, exchange_at=8)
    assert share(result, 7, "read", "reader") > 0.7
    followed = [step for step in range(8, 28) if share(result, step, "read", "reader") < 0.3]
    assert followed and followed[0] <= 18 and set(range(18, 28)) <= set(followed)


def test_a_seed_fixes_every_route() -> None:
    assert run(steps=5).json(rows=True) == run(steps=5).json(rows=True)


def garbage(seed: int) -> Callable[[Affinity, Any], list[Any]]:
    """A learner that believes something else after every step."""
    draw = generator(seed, "garbage")

    def step(self: Affinity, engines: Any) -> list[Any]:
        numbers = [[10 ** draw.uniform(-6, 6) for _ in range(4)] for _ in range(4)]
        tasks = {"read": TaskProfile(*numbers[0]), "write": TaskProfile(*numbers[1])}
        pools = {"reader": PoolSpeed(*numbers[2]), "writer": PoolSpeed(*numbers[3])}
        self.figures = Figures(tasks, pools, frozenset(draw.choice([(), ("reader",), ("writer", "nowhere")])))
        return []

    return step


@pytest.mark.parametrize("seed", range(3))
def test_nothing_depends_on_what_is_learned(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`simulate` checks the ledger; as many groups are trained, of the same tasks, whatever is believed."""
    right = run(steps=4)
    monkeypatch.setattr(Affinity, "step", garbage(seed))
    wrong = run(steps=4)
    for key in ("ledger/task/trained", "ledger/attempt/trained", "tokens/trained"):
        assert [row[key] for row in wrong.rows] == [row[key] for row in right.rows]


def test_a_run_with_one_pool_compares_nothing() -> None:
    fleet = Fleet()
    fleet.affinity = Affinity()
    fleet.join(EngineEntry("a-0/1", None, pool="a"))  # type: ignore[arg-type]
    fleet.place("1.0.0", "a-0/1", None, "write")
    fleet.learn_from(trajectory("1.0.0", 1.0))
    assert not fleet.affinity.figures.tasks and routed(fleet.view, "write").reason == "least held"


# ------------------------------------------------------------------------------------------ what is shown of it


def test_a_run_with_several_tasks_has_its_metrics_by_task() -> None:
    row = run(steps=3).rows[-1]
    for key in ("reward/mean", "staleness/mean", "staleness/max", "episode/turns_mean", "episode/tokens_mean"):
        assert {f"{key}/read", f"{key}/write"} <= row.keys()
    assert row["tokens/trained/read"] + row["tokens/trained/write"] == row["tokens/trained"]  # type: ignore[operator]
    rates = [row[f"tokens_per_second/trained{task}"] for task in ("", "/read", "/write")]
    assert rates[0] == pytest.approx(rates[1] + rates[2])  # type: ignore[operator]
    assert (row["episode/turns_mean/read"], row["episode/turns_mean/write"]) == (6.0, 1.0)
    for key in row:
        check(key)


def test_the_report_shows_which_pool_served_what_and_why() -> None:
    def event(name: str, **data: Any) -> dict[str, Any]:
        return {"name": name, "data": data}

    route = {"task": "read", "engine": "a-0/1", "pool": "a", "reason": "read to a: decode share 0.10"}
    events = [
        event("route", **{**route, "attempt": "1.0.0"}),
        event("route", **{**route, "attempt": "1.1.0", "pool": "b", "reason": "least held"}),
        event("route", **{**route, "attempt": "1.1.0"}),  # it moved
        event("route", **{**route, "attempt": "2.0.0", "pool": "b", "reason": "least held"}),
        *(event("trajectory.end", id=attempt, tokens=10) for attempt in ("1.0.0", "1.1.0", "2.0.0")),
    ]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", sections.pools(events))
    assert cells == [
        *("read", "a", "2", "67%", "20", "read to a: decode share 0.10"),
        *("read", "b", "1", "33%", "10", "least held"),
    ]
    assert sections.pools(events[:1] + events[4:5]) == "", "with one pool there is nothing to tell apart"


def test_the_torch_engine_can_tell_contexts_from_answers() -> None:
    """Steps of 2 ms, 0.1 ms for a context token and 0.3 ms for an answer."""
    time, draw = StepTime(), generator(1, "steps")
    found = wanted = 0.0
    for _ in range(300):
        tokens, answers = draw.choice([0, 0, 30, 80, 200]), draw.randrange(1, 20)
        seconds = 2e-3 + 1e-4 * tokens + 3e-4 * answers
        part = time.contexts(seconds, tokens, answers)
        assert 0.0 <= part < seconds and (part > 0) == (tokens > 0)
        found, wanted = found + part, wanted + 1e-4 * tokens
    assert found == pytest.approx(wanted, rel=0.1)
    assert time.contexts(0.5, 10, 0) == 0.5, "nothing else was done"


def test_a_slowdown_of_what_samples_nothing_is_refused() -> None:
    data = {"name": "t", "role": "train", "device": "H800", "count": 1, "slowdown": {"prefill": 2.0}}
    rollout = {**data, "name": "r", "role": "rollout", "slowdown": None}
    with pytest.raises(ValueError, match="pool t: slowdown is for engines that sample answers"):
        ClusterConfig.model_validate_json(json.dumps({"pools": [rollout, data]}))
