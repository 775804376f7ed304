"""Fleets for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollweave.fleet.fleet import EngineEntry, Fleet
from rollweave.fleet.proxy import LLMProxy


def fleet_of(engines: Sequence[Any], tasks: Sequence[tuple[str, ...]] = ()) -> Fleet:
    """These engines, called engine-0/1, engine-1/1 and so on; `tasks` that each of them prefers."""
    fleet = Fleet()
    for number, engine in enumerate(engines):
        fleet.join(EngineEntry(f"engine-{number}/1", engine, tasks=tasks[number] if tasks else ()))
    return fleet


def proxy_of(engines: Sequence[Any]) -> LLMProxy:
    """A host's way to these engines, without a driver."""
    return LLMProxy(fleet_of(engines).update())
