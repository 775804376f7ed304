"""Where the answer is known without simulating: the simulation must agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollweave.config.scenario import Scenario
from rollweave.errors import ConfigError
from rollweave.observability.events import Event
from rollweave.simulation.costs.measured import engine_costs
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.simulate import scenario, simulate

FIXED = {
    "turns": {"type": "constant", "value": 3},
    "prompt_tokens": {"type": "constant", "value": 400},
    "observation_tokens": {"type": "constant", "value": 100},
    "answer_tokens": {"type": "constant", "value": 80},
}
"""No variance and no latency."""

MIXED = {"preset": "gem-math"}

PIPELINES: list[dict[str, Any]] = [
    {"type": "sync"},
    {"type": "sync+"},
    {"type": "one_off"},
    {"type": "areal", "alpha": 1},
    {"type": "rollart", "alpha": 0},
    {"type": "rollart", "alpha": 1},
]


def make(task: dict[str, Any], pipeline: dict[str, Any], devices: int = 4, **more: Any) -> Scenario:
    return scenario(
        {
            "training": {"steps": 3},
            "cluster": {
                "pools": [
                    {"name": "rollout", "device": "H20", "count": devices, "role": "rollout"},
                    {"name": "train", "device": "H800", "count": 8, "role": "train"},
                ]
            },
            "workload": {"tasks": [task]},
            "rollout": {"groups_per_step": 4, "group_size": 4, **more.pop("rollout", {})},
            "pipeline": pipeline,
            **more,
        }
    )


def what_happened(outcome: SimulationResult) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(outcome.json(rows=True))
    return {key: value for key, value in data.items() if key not in ("pipeline", "alpha", "name")}


def number(outcome: SimulationResult, step: int, key: str) -> float:
    value = outcome.rows[step][key]
    assert isinstance(value, int | float)
    return float(value)


def total(outcome: SimulationResult, *keys: str) -> float:
    return sum(number(outcome, step, key) for step in range(outcome.steps) for key in keys)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    work = {**MIXED, "reset_failure_rate": 0.1, "step_hang_rate": 0.01}
    again = [simulate(make(work, {"type": "rollart"}, seed=seed)).json(rows=True) for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def test_rollart_at_alpha_zero_is_sync_plus() -> None:
    plus, zero = (
        simulate(make(MIXED, {"type": kind, **more})) for kind, more in (("sync+", {}), ("rollart", {"alpha": 0}))
    )
    assert what_happened(plus) == what_happened(zero)


def test_without_variance_and_latency_the_modes_that_do_not_overlap_take_the_same_time() -> None:
    seconds = {
        kind["type"] + str(kind.get("alpha", "")): simulate(make(FIXED, kind)).step_seconds for kind in PIPELINES
    }
    together = [seconds[name] for name in ("sync", "sync+", "rollart0")]
    assert together == pytest.approx([together[0]] * 3, rel=1e-6)
    for overlapped in ("one_off", "areal1", "rollart1"):
        assert seconds[overlapped] <= together[0] * (1 + 1e-6), overlapped


@pytest.mark.parametrize("task", [FIXED, MIXED, {"preset": "frozen-lake"}], ids=["fixed", "math", "lake"])
def test_more_devices_never_make_a_step_shorter_than_its_longest_trajectory(task: dict[str, Any]) -> None:
    outcomes = [
        simulate(make(task, {"type": "sync+"}, devices, training={"steps": 1}, warmup=0))
        for devices in (1, 2, 4, 8, 16, 32)
    ]
    for outcome in outcomes:
        assert outcome.rollout_seconds >= outcome.longest_trajectory_seconds * (1 - 1e-9)
    seconds = [outcome.step_seconds for outcome in outcomes]
    assert seconds == sorted(seconds, reverse=True)
    # From where every trajectory has a device of its own, more of them change nothing.
    assert seconds[-1] == pytest.approx(seconds[-2], rel=1e-9)


def test_one_trajectory_on_one_device_takes_what_the_formula_says() -> None:
    work = make(
        {**FIXED, "turns": {"type": "constant", "value": 1}, "step_seconds": {"type": "constant", "value": 2.5}},
        {"type": "sync+"},
        devices=1,
        training={"steps": 1},
        warmup=0,
        rollout={"groups_per_step": 1, "group_size": 1},
        constants={
            "compute_efficiency": 1.0,
            "bandwidth_efficiency": 1.0,
            "step_overhead": 0.0,
            "training_overhead": 0.0,
        },
    )
    outcome = simulate(work)
    model, h20 = work.spec(), work.cluster.device(work.cluster.pools[0])
    weights = model.weight_bytes / (h20.bandwidth * 1e12)
    cached = sum(400 + drawn for drawn in range(80)) * model.kv_bytes_per_token / (h20.bandwidth * 1e12)
    prefill = 2 * model.params * 401 / (h20.tflops * 1e12) - weights
    attention = model.attention_flops_per_pair * 400 * 401 / 2 / (h20.tflops * 1e12)
    assert outcome.rollout_seconds == pytest.approx(80 * weights + cached + prefill + attention + 2.5, rel=1e-6)
    trained = (2 * model.params * 480 + model.attention_flops_per_pair * 480**2 / 2) * work.constants.training_passes
    reached = 8 * 989.5e12 * work.constants.training_efficiency
    assert outcome.rows[0]["time/train"] == pytest.approx(trained / reached, rel=1e-6)


@pytest.mark.parametrize("mode", ["recompute", "keep", "restart_turn"])
def test_every_token_is_booked_under_failures_deaths_and_redundancy(mode: str) -> None:
    """At the end of a run that never runs ahead nothing is in flight: sampled = trained + wasted."""
    work = {**MIXED, "reset_failure_rate": 0.05, "step_failure_rate": 0.05, "step_hang_rate": 0.01}
    outcome = simulate(
        make(
            work,
            {"type": "rollart", "alpha": 0, "in_flight": mode},
            rollout={"redundant_members": 1, "redundant_groups": 0.5},
            outages=[{"engine": n, "at": 3.0 + 20 * n, "seconds": 10.0} for n in range(4)],
            training={"steps": 4},
        )
    )
    generated, trained = total(outcome, "tokens/generated"), total(outcome, "tokens/trained")
    wasted = total(outcome, *(key for key in outcome.rows[0] if key.startswith("tokens/wasted/")))
    assert outcome.failures > 0 and wasted > 0
    in_flight = number(outcome, -1, "tokens/in_flight")
    assert generated == trained + wasted + in_flight
    assert 0 <= in_flight < trained


def test_an_update_in_flight_costs_recomputation_and_keeping_does_not() -> None:
    again, kept = (
        simulate(make(MIXED, {"type": "rollart", "alpha": 2, "in_flight": mode})) for mode in ("recompute", "keep")
    )
    assert again.recomputed_tokens > 0 == kept.recomputed_tokens
    assert again.staleness_max <= 2


def test_blocking_transfer_exposes_what_background_hides() -> None:
    hidden, blocking = (
        simulate(make(MIXED, {"type": "rollart"}, weights={"transfer": transfer}))
        for transfer in ("background", "blocking")
    )
    assert hidden.sync_exposed_seconds < blocking.sync_exposed_seconds <= blocking.sync_seconds


def test_failures_and_a_cold_image_cache_make_steps_longer() -> None:
    calm = {
        **FIXED,
        "reset_seconds": {"type": "constant", "value": 5},
        "image_seconds": {"type": "constant", "value": 60},
    }
    warm, cold, broken = (
        simulate(make({**calm, **trouble}, {"type": "sync+"}))
        for trouble in ({}, {"image_cache_hit_rate": 0.5}, {"reset_hang_rate": 0.2})
    )
    assert warm.failures == cold.failures == 0 < broken.failures
    assert warm.step_seconds + 50 < cold.step_seconds < warm.step_seconds + 61
    assert broken.step_seconds > warm.step_seconds + 500  # a hung reset is noticed after its deadline


def test_affinity_sends_tasks_to_their_pool() -> None:
    pools = [
        {"name": "decode", "device": "H20", "count": 2, "role": "rollout", "tasks": ["gem-math"]},
        {"name": "other", "device": "H800", "count": 2, "role": "rollout"},
        {"name": "train", "device": "H800", "count": 8, "role": "train"},
    ]
    one = simulate(make(MIXED, {"type": "sync+"}, cluster={"pools": pools}))
    assert one.pool("decode").busy_share > 0 == one.pool("other").busy_share
    other = simulate(make({"preset": "gem-game"}, {"type": "sync+"}, cluster={"pools": pools}))
    assert other.pool("decode").busy_share == 0 < other.pool("other").busy_share


def test_prefill_and_decode_workers_share_a_rollout() -> None:
    pools = [
        {"name": "prefill", "device": "H800", "count": 1, "role": "prefill"},
        {"name": "decode", "device": "H20", "count": 1, "role": "decode"},
        {"name": "train", "device": "H800", "count": 8, "role": "train"},
    ]
    together = simulate(make({"preset": "frozen-lake"}, {"type": "sync+"}, devices=1))
    split = simulate(make({"preset": "frozen-lake"}, {"type": "sync+"}, cluster={"pools": pools}))
    assert split.pool("prefill").busy_share > 0 < split.pool("decode").busy_share
    assert split.rollout_seconds < together.rollout_seconds
    assert split.turns == together.turns


def split_pools(*prefill: str) -> dict[str, Any]:
    return {
        "pools": [
            *({"name": name, "device": "H800", "count": 1, "role": "prefill"} for name in prefill),
            {"name": "decode", "device": "H20", "count": 2, "role": "decode"},
            {"name": "train", "device": "H800", "count": 8, "role": "train"},
        ]
    }


def test_the_router_says_which_prefill_engine_a_trajectory_has_and_who_takes_over_when_it_dies() -> None:
    events = list[Event]()
    outcome = simulate(
        make(
            {"preset": "frozen-lake"},
            {"type": "rollart", "alpha": 0},
            cluster=split_pools("one", "other"),
            outages=[{"engine": 0, "at": 5.0, "seconds": 1000.0}, {"engine": 3, "at": 40.0, "seconds": 10.0}],
        ),
        sinks=[events.append],
    )
    routes = [event.data for event in events if event.name == "route"]
    first = {route["attempt"]: route for route in reversed(routes)}
    assert {route["prefill"] for route in first.values()} == {"one-0/1", "other-0/1"}
    changed = [route for route in routes if route["reason"] == "its prefill engine is not open"]
    assert changed and all(route["prefill"] == "other-0/1" for route in changed)
    assert all(first[route["attempt"]]["engine"] == route["engine"] for route in changed)
    wasted = total(outcome, *(key for key in outcome.rows[0] if key.startswith("tokens/wasted/")))
    trained, in_flight = total(outcome, "tokens/trained"), number(outcome, -1, "tokens/in_flight")
    assert total(outcome, "tokens/generated") == trained + wasted + in_flight


def test_colocated_devices_take_turns() -> None:
    pools = [{"name": "all", "device": "H800", "count": 8, "role": "colocated"}]
    outcome = simulate(make(MIXED, {"type": "sync+"}, cluster={"pools": pools}))
    assert 0 < outcome.pool("all").busy_share <= 1
    overlapped = simulate(make(MIXED, {"type": "rollart"}, cluster={"pools": pools}))
    assert number(overlapped, -1, "time/train") > 0


def judged(device: str, count: int, **judge: Any) -> SimulationResult:
    pools = [
        {"name": "rollout", "device": "H20", "count": 4, "role": "rollout"},
        {"name": "train", "device": "H800", "count": 8, "role": "train"},
        {"name": "judge", "device": device, "count": count, "role": "reward"},
    ]
    return simulate(make({"preset": "rlvr-judge"}, {"type": "sync+"}, cluster={"pools": pools}, judge=judge))


def test_functions_are_paid_for_while_they_work_and_devices_all_the_time() -> None:
    dedicated, functions = judged("H800", 4), judged("serverless", 4, idle_seconds=5.0)
    assert dedicated.reward_utilisation is not None and functions.reward_utilisation is not None
    assert functions.reward_utilisation > 2 * dedicated.reward_utilisation
    assert functions.pool("judge").dollars_per_hour < dedicated.pool("judge").dollars_per_hour


def colocated(**judge: Any) -> SimulationResult:
    pools = [
        {"name": "rollout", "device": "H20", "count": 4, "role": "rollout"},
        {"name": "train", "device": "H800", "count": 8, "role": "train"},
    ]
    short = {"colocated": True, "answer_tokens": {"type": "constant", "value": 4.0}, **judge}
    return simulate(make({"preset": "rlvr-judge"}, {"type": "sync+"}, cluster={"pools": pools}, judge=short))


def test_a_colocated_judge_needs_no_devices_and_slows_the_engines_beside_it() -> None:
    alone, beside = colocated(offloaded=0.0, sharing_slowdown=1.0), colocated(offloaded=0.0, sharing_slowdown=1.25)
    assert alone.step_seconds < beside.step_seconds < 1.25 * alone.step_seconds
    assert beside.reward_utilisation is not None and 0.0 < beside.reward_utilisation < 1.0


def test_layers_in_host_memory_make_a_judge_slower_once_fetching_takes_longer_than_computing() -> None:
    none, half, all_of_it = (colocated(offloaded=share, sharing_slowdown=1.0) for share in (0.0, 0.5, 1.0))
    assert none.reward_utilisation is not None and half.reward_utilisation is not None
    assert all_of_it.reward_utilisation is not None
    assert none.reward_utilisation < half.reward_utilisation < all_of_it.reward_utilisation


def test_layers_on_the_devices_take_room_from_the_kv_cache() -> None:
    scenario = make({"preset": "rlvr-judge"}, {"type": "sync+"}, judge={"colocated": True, "offloaded": 0.5})
    pool = scenario.judge_pool
    assert pool is not None and pool.role == "rollout"
    less = engine_costs(scenario, pool).kv_tokens
    apart = engine_costs(make({"preset": "rlvr-judge"}, {"type": "sync+"}), pool).kv_tokens
    kept = 0.5 * scenario.spec(scenario.judge.model).weight_bytes
    assert apart - less == pytest.approx(kept / scenario.spec().kv_bytes_per_token, abs=1)


def test_a_judge_with_little_room_makes_trajectories_queue() -> None:
    call = {"seconds": {"type": "constant", "value": 20.0}, "concurrency": 1}
    assert judged("H800", 1, **call).step_seconds > judged("H800", 16, **call).step_seconds + 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "qwen9"}, "model 'qwen9' is not in the catalogue"),
        ({"workload": {"tasks": [{"preset": "chess"}]}}, "no preset chess"),
        ({"workload": {"tasks": []}}, "either tasks or a trace"),
        ({"workload": {"tasks": [{"preset": "rlvr-judge"}]}}, "role: reward"),
        (
            {
                "judge": {"colocated": True},
                "cluster": {
                    "pools": [
                        {"name": "r", "device": "H800", "count": 4, "role": "rollout"},
                        {"name": "t", "device": "H800", "count": 4, "role": "train"},
                        {"name": "j", "device": "H800", "count": 4, "role": "reward"},
                    ]
                },
            },
            "judge.colocated leaves the pool of role reward idle",
        ),
        ({"warmup": 3}, "leaves nothing"),
        ({"cluster": {"pools": [{"name": "a", "device": "H20", "count": 4, "role": "rollout"}]}}, "one that trains"),
        (
            {
                "model": "qwen3-32b",
                "cluster": {
                    "pools": [
                        {"name": "r", "device": "L40S", "count": 4, "role": "rollout"},
                        {"name": "t", "device": "H800", "count": 4, "role": "train"},
                    ]
                },
            },
            "raise its tensor_parallel",
        ),
    ],
)
def test_a_scenario_that_cannot_work_says_why(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=message):
        simulate(make(MIXED, {"type": "sync+"}, **change))
