"""The router: which engine, and why; the same on every view of the fleet."""

from __future__ import annotations

from random import Random

import pytest

from fleets import fleet_of
from rollweave.clock import Clock, run_virtual
from rollweave.engines.protocol import Sampling
from rollweave.fleet.fleet import EngineEntry, Fleet, FleetView
from rollweave.fleet.router import Route, RouteAsk, choose, surplus
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.rollout.link import Lease, Moved, Packet
from rollweave.tasks import Task

TASKS = [("a",), ("b",), ("a",), ("b",), ("a",), ()]
OPEN_TO = {"a": [0, 2, 4], "b": [1, 3], "c": [5]}


def name(number: int) -> str:
    return f"engine-{number}/1"


@pytest.mark.parametrize("seed", range(5))
def test_every_trajectory_goes_to_the_least_busy_engine_that_is_open_to_its_task(seed: int) -> None:
    rng, view = Random(seed), FleetView(fleet_of([None] * 6, TASKS).update())
    held, placed = [0] * 6, list[int]()
    for number in range(600):
        if placed and rng.random() < 0.45:
            engine = placed.pop(rng.randrange(len(placed)))
            view.hold(name(engine), -1)
            held[engine] -= 1
            continue
        task = rng.choice(list(OPEN_TO))
        expected = min(OPEN_TO[task], key=lambda engine: (held[engine], engine))
        route = choose(RouteAsk(str(number), task), view)
        assert route is not None and route.engine == name(expected)
        assert route.inputs == {"open": len(OPEN_TO[task]), "held": held[expected]}
        view.hold(route.engine, +1)
        held[expected] += 1
        placed.append(expected)


def test_a_task_whose_engines_are_gone_goes_to_those_that_name_none_and_then_to_any() -> None:
    fleet = fleet_of([None] * 3, [("a",), (), ("b",)])
    order = []
    for _ in range(3):
        route = choose(RouteAsk("1", "a"), fleet.view)
        assert route is not None
        order.append(route.engine)
        fleet.lose(route.engine, "test")
    assert order == [name(0), name(1), name(2)]
    assert choose(RouteAsk("1", "a"), fleet.view) is None, "no engine is open"


def test_members_of_a_group_share_an_engine() -> None:
    view = fleet_of([None] * 3).view
    routes = [choose(RouteAsk(f"{group}.{member}", "t", group), view) for group in range(6) for member in range(2)]
    engines = [route.engine for route in routes if route is not None]
    assert engines == [name(group % 3) for group in range(6) for _ in range(2)]


def test_an_old_update_changes_nothing_and_an_engine_that_failed_stays_closed() -> None:
    fleet = fleet_of([None] * 2)
    old = fleet.update()
    view = FleetView(old)
    fleet.lose(name(0), "test")
    assert view.update(fleet.update()) and not view.update(old)
    assert not view.is_open(name(0))
    view.note_gone(name(1))
    assert not view.update(fleet.update()), "the driver does not know yet"
    fleet.join(fleet_of([None] * 3).entries[name(2)])
    assert view.update(fleet.update())
    assert [id for id in view.engines if view.is_open(id)] == [name(2)]


def test_after_a_reopening_nobody_holds_more_than_a_fair_share() -> None:
    fleet = fleet_of([None] * 3)
    held = {str(n): (name(0), RouteAsk(str(n), "t")) for n in range(6)}
    assert surplus(held, fleet.view) == ["2", "3", "4", "5"], "the newest go"
    grouped = {str(n): (name(0), RouteAsk(str(n), "t", n % 3)) for n in range(6)}
    assert surplus(grouped, fleet.view) == ["1", "2", "4", "5"], "each group to its engine"


def test_the_driver_counts_the_trajectories_of_all_hosts() -> None:
    fleet: Fleet = fleet_of([None] * 2)
    for attempt in ("1", "2", "3"):
        route = choose(RouteAsk(attempt, "t"), fleet.view)
        assert route is not None
        fleet.place(attempt, route.engine)
    assert fleet.view.held == {name(0): 2, name(1): 1}
    fleet.place("1", name(1))
    assert fleet.view.held == {name(0): 1, name(1): 2} and fleet.moves == 1
    fleet.lose(name(1), "test")
    fleet.leave("2")
    fleet.leave("3")
    assert not any(fleet.view.held.values())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_moves_of_a_trajectory_the_driver_believes_the_later(order: tuple[int, int]) -> None:
    """A packet that was lost is said again after the next one."""

    async def main(clock: Clock) -> str:
        fleet = fleet_of([None] * 3)
        dispatcher = Dispatcher(fleet)
        link = dispatcher.attach(lambda packet: None, 1)
        dispatcher.submit([Lease("a", 0, 0, 0, Task("a", "t", 0), 0, Sampling(), 0)], lambda lease, report: None)
        moves = [Moved("a", Route(name(number + 1), "moved", {}), number) for number in range(2)]
        for number in order:
            link.receive(Packet({f"moved.{number}": moves[number]}))
        link.close()
        (engine,) = [id for id, held in fleet.view.held.items() if held]
        return engine

    assert run_virtual(main) == name(2)


def split_fleet(prefill: int = 2, decode: int = 2) -> Fleet:
    fleet = Fleet()
    for role, count in (("prefill", prefill), ("decode", decode), ("rollout", 1)):
        for number in range(count):
            tasks = ("alone",) if role == "rollout" else ()
            fleet.join(EngineEntry(f"{role}-{number}/1", None, role=role, tasks=tasks))  # type: ignore[arg-type]
    return fleet


def test_a_decode_engine_gets_the_prefill_engine_that_computes_for_the_fewest() -> None:
    fleet, places = split_fleet(), list[tuple[str, str | None]]()
    for number in range(4):
        route = choose(RouteAsk(str(number), "any"), fleet.view)
        assert route is not None and route.inputs["prefill_open"] == 2
        fleet.place(str(number), route.engine, route.prefill)
        places.append((route.engine, route.prefill))
    assert places == [("decode-0/1", "prefill-0/1"), ("decode-1/1", "prefill-1/1")] * 2
    alone = choose(RouteAsk("4", "alone"), fleet.view)
    assert alone is not None and (alone.engine, alone.prefill) == ("rollout-0/1", None)
    fleet.leave("1")
    assert fleet.view.held["prefill-1/1"] == 1
    moved = choose(RouteAsk("0", "any"), fleet.view, "moved", prefill="prefill-0/1")
    assert moved is not None and moved.prefill == "prefill-0/1"  # it has the trajectory's cache


def test_when_a_prefill_engine_is_lost_its_trajectories_still_count_on_their_decode_engines() -> None:
    fleet = split_fleet(prefill=1, decode=1)
    fleet.place("0", "decode-0/1", "prefill-0/1")
    fleet.lose("prefill-0/1", "killed")
    assert fleet.view.held == {"decode-0/1": 1}
    route = choose(RouteAsk("1", "any"), fleet.view)
    assert route is not None and route.prefill is None  # it computes the contexts itself
    fleet.leave("0")
    assert fleet.view.held["decode-0/1"] == 0
