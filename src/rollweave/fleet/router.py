"""Router: which engine a trajectory goes to, and why. Pure functions of a view of the fleet; no clock.

If engines of several pools are open to its task, it goes to the pool where it is expected to end first, what the
engines there hold included (`fleet/affinity.py`); within a pool to the engine that holds the least. Until all of them
are known it goes to the engine that holds the least of all. The reason says which of these it was.

The driver calls `choose` when it leases a trajectory, because it alone knows the load of all hosts; the lease carries
the answer. A host calls it, on its own view, only when that engine is gone or drains. Inline, Ray and the simulation
use the same functions.

If the engine only decodes, the route also names a prefill engine, which computes the contexts of all turns: it keeps
the trajectory's KV cache, so that a later turn needs only what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from rollweave.fleet.affinity import Figures
from rollweave.fleet.fleet import EngineId, FleetView
from rollweave.observability.jsonl import Json


class RouteAsk(NamedTuple):
    """What is known of a trajectory that needs an engine."""

    attempt: str
    task: str
    group: int | None = None
    """Its group, if the members of a group are to share an engine."""
    context: int = 0
    """Tokens that it has already: their KV cache stays behind, and is computed again."""


class Route(NamedTuple):
    """An engine, and what led to it."""

    engine: EngineId
    reason: str
    inputs: dict[str, Json]
    prefill: EngineId | None = None
    """The engine that computes its contexts; None: `engine` does it itself."""
    expected: float | None = None
    """Seconds that it is expected to need on the engine, if pools were compared."""


def choose(ask: RouteAsk, view: FleetView, moved: str = "", prefill: EngineId | None = None) -> Route | None:
    """The engine its group belongs to, or the one of the best pool that holds the least, among those open to its task.
    `moved`: why it does not stay where it was; `prefill`: the prefill engine that it has. None: no engine is open, and
    it has to wait."""
    candidates = view.open_to(ask.task)
    if not candidates:
        return None
    if ask.group is not None:
        route = Route(candidates[ask.group % len(candidates)], "its group's", {})
    elif view.figures is None or len(view.pools_open_to(ask.task)) < 2:
        route = Route(view.least_held(ask.task), "least held", {})
    else:
        route = _compare(ask, view, view.figures)
    inputs: dict[str, Json] = {"open": len(candidates), "held": view.held.get(route.engine, 0), **route.inputs}
    reason = f"{moved}: {route.reason}" if moved else route.reason
    return with_prefill(route._replace(reason=reason, inputs=inputs), view, prefill)


def _compare(ask: RouteAsk, view: FleetView, figures: Figures) -> Route:
    """The pool where it is expected to end first; one of which too little is known now and then."""
    pools, task = view.pools_open_to(ask.task), ask.task
    if (untried := next(filter(view.is_untried, pools), None)) is not None:
        return Route(
            view.least_held(task, untried), f"{task} to {untried}: to learn how fast it is", {"tried": untried}
        )
    known = [pool for pool in pools if pool in figures.pools]
    if task not in figures.tasks or not known:
        return Route(view.least_held(task), f"least held: {task} and the pools are not known yet", {})
    engines = {pool: view.least_held(task, pool) for pool in known}
    expected = {pool: figures.expected(task, pool, view.mix(engines[pool]), ask.context) for pool in known}
    order = sorted(known, key=lambda pool: expected[pool].total)  # of equals the first to join
    best, *others = ((pool, expected[pool]) for pool in order)
    profile = figures.tasks[task]
    against = "".join(f" against {seconds.total:.3g} s on {pool}" for pool, seconds in others[:1])
    reason = f"{task} to {best[0]}: decode share {profile.decode_share:.2f}, expected {best[1].total:.3g} s{against}"
    inputs: dict[str, Json] = {
        "expected": {pool: [round(seconds.own, 4), round(seconds.delay, 4)] for pool, seconds in expected.items()},
        "profile": [round(number, 2) for number in profile],
        "mix": {pool: dict(view.mix(engine)) for pool, engine in engines.items()},
    }
    return Route(engines[best[0]], reason, inputs, expected=best[1].own)


def with_prefill(route: Route, view: FleetView, present: EngineId | None) -> Route:
    """The route with the prefill engine that its engine needs: the present one while that is open, otherwise the one
    that computes for the fewest trajectories. An engine that finds none open computes its contexts itself."""
    open_ones = view.open_prefill
    if not open_ones or view.engines[route.engine].role != "decode":
        return route
    prefill = present if present in open_ones else min(open_ones, key=lambda id: view.held.get(id, 0))
    inputs = {**route.inputs, "prefill_open": len(open_ones), "prefill_held": view.held.get(prefill, 0)}
    return route._replace(inputs=inputs, prefill=prefill)


def surplus(held: Mapping[str, tuple[EngineId, RouteAsk]], view: FleetView) -> list[str]:
    """After a reopening: the attempts that should change engine. Those that are not where their group belongs now; of
    the others those beyond each engine's fair share, the newest first to go."""
    alone = {attempt: engine for attempt, (engine, ask) in held.items() if ask.group is None}
    fair = ceil(len(alone) / max(1, len(view.open_to_any())))
    at: dict[EngineId, list[str]] = {}
    for attempt, engine in alone.items():
        at.setdefault(engine, []).append(attempt)
    too_many = [attempt for engine, some in at.items() for attempt in some[fair if view.is_open(engine) else 0 :]]
    return too_many + [attempt for attempt, (engine, ask) in held.items() if _strayed(engine, ask, view)]


def _strayed(engine: EngineId, ask: RouteAsk, view: FleetView) -> bool:
    if ask.group is None:
        return False
    candidates = view.open_to(ask.task)
    return bool(candidates) and engine != candidates[ask.group % len(candidates)]
