"""Fleets for tests."""

from __future__ import annotations

from collections.abc import Sequence

from rollweave.engines.protocol import Engine
from rollweave.fleet.fleet import EngineEntry, Fleet


def fleet_of(engines: Sequence[Engine]) -> Fleet:
    """These engines, called engine-0/1, engine-1/1 and so on."""
    fleet = Fleet()
    for number, engine in enumerate(engines):
        fleet.join(EngineEntry(f"engine-{number}/1", engine))
    return fleet
