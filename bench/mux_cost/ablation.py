"""`default` with one switch at a time turned: off if it is on, on if it is off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollweave.mux.model.policy import DEFAULT, ROLLMUX, MuxPolicy

SWITCHES = ("consolidation", "fifo", "banking", "slowdown_price", "prune_saturated", "order_search", "adaptive")
"""What `default` adds to RollMux."""
EXTRAS: dict[str, dict[str, Any]] = {
    "integrated_cost": {"integrated_cost": True, "slowdown_price": 0.0},
    "fifo by proof only": {"fifo": "bound"},
}
"""What it could have instead."""
WITH = {"banking": ("guard_iters",)}
"""Numbers that mean nothing without their switch."""


def ablations() -> dict[str, MuxPolicy]:
    rows = {f"default - {name}": _without(name) for name in SWITCHES}
    return rows | {f"default, {name}": replace(DEFAULT, **changes) for name, changes in EXTRAS.items()}


def _without(name: str) -> MuxPolicy:
    return replace(DEFAULT, **{one: getattr(ROLLMUX, one) for one in (name, *WITH.get(name, ()))})
