"""Router: which engine a trajectory goes to, and why. Pure functions of a view of the fleet; no clock.

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

from rollweave.fleet.fleet import EngineId, FleetView
from rollweave.observability.jsonl import Json


class RouteAsk(NamedTuple):
    """What is known of a trajectory that needs an engine."""

    attempt: str
    task: str
    group: int | None = None
    """Its group, if the members of a group are to share an engine."""


class Route(NamedTuple):
    """An engine, and what led to it."""

    engine: EngineId
    reason: str
    inputs: dict[str, Json]
    prefill: EngineId | None = None
    """The engine that computes its contexts; None: `engine` does it itself."""


def choose(ask: RouteAsk, view: FleetView, moved: str = "", prefill: EngineId | None = None) -> Route | None:
    """The engine its group belongs to, or the one that holds the fewest trajectories, among those open to its task.
    `moved`: why it does not stay where it was; `prefill`: the prefill engine that it has. None: no engine is open, and
    it has to wait."""
    candidates = view.open_to(ask.task)
    if not candidates:
        return None
    if ask.group is None:
        engine, reason = view.least_held(ask.task), "least held"
    else:
        engine, reason = candidates[ask.group % len(candidates)], "its group's"
    inputs: dict[str, Json] = {"open": len(candidates), "held": view.held.get(engine, 0)}
    return with_prefill(Route(engine, f"{moved}: {reason}" if moved else reason, inputs), view, prefill)


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
