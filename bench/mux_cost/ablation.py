"""`default` with one switch at a time set back to what RollMux does."""

from __future__ import annotations

from dataclasses import fields, replace

from rollweave.mux.policy import DEFAULT, ROLLMUX, Policy

NUMBERS_OF_A_SWITCH = ("guard_iters", "reserve")
"""They mean nothing without banking, and are set back with it."""


def ablations() -> dict[str, Policy]:
    switches = [
        field.name
        for field in fields(Policy)
        if field.name not in NUMBERS_OF_A_SWITCH and getattr(DEFAULT, field.name) != getattr(ROLLMUX, field.name)
    ]
    return {f"default - {name}": _without(name) for name in switches}


def _without(name: str) -> Policy:
    names = (name, *NUMBERS_OF_A_SWITCH) if name == "banking" else (name,)
    return replace(DEFAULT, **{one: getattr(ROLLMUX, one) for one in names})
