"""Router: which engine a trajectory goes to, and why. Two pure functions of a view of the fleet; no clock.

The driver calls `choose` when it leases a trajectory, because it alone knows the load of all hosts; the lease carries
the answer. A host calls it, on its own view, only when that engine is gone or drains. Inline, Ray and the simulation
use the same two functions.
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


def choose(ask: RouteAsk, view: FleetView, moved: str = "") -> Route | None:
    """The engine its group belongs to, or the one that holds the fewest trajectories, among those open to its task.
    `moved`: why it does not stay where it was. None: no engine is open, and it has to wait."""
    candidates = view.open_to(ask.task)
    if not candidates:
        return None
    if ask.group is None:
        engine, reason = view.least_held(ask.task), "least held"
    else:
        engine, reason = candidates[ask.group % len(candidates)], "its group's"
    inputs: dict[str, Json] = {"open": len(candidates), "held": view.held.get(engine, 0)}
    return Route(engine, f"{moved}: {reason}" if moved else reason, inputs)


def surplus(held: Mapping[str, tuple[EngineId, RouteAsk]], view: FleetView) -> list[str]:
    """After a reopening: the attempts that should change engine. Those that are not where their group belongs now; of
    the others those beyond each engine's fair share, the newest first to go."""
    alone = {attempt: engine for attempt, (engine, ask) in held.items() if ask.group is None}
    open_ones = [id for id in view.engines if view.is_open(id)]
    fair = ceil(len(alone) / max(1, len(open_ones)))
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
