"""Every switch of the scheduler in one place. `rollmux` is the paper, `default` is what we recommend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rollweave.errors import ConfigError

Fifo = Literal["off", "bound", "simulated"]


@dataclass(frozen=True, slots=True)
class MuxPolicy:
    """Defaults are RollMux's Algorithm 1; every field that differs from its default is an extension."""

    max_group: int = 5
    prune_saturated: bool = True
    """Skip groups whose T_load has reached T_cycle (Algorithm 1, line 4)."""
    forbid_oversaturated: bool = False
    consolidation: bool = False
    """After a departure, empty small groups into others where that costs less."""
    integrated_cost: bool = False
    """Score a placement by dollars until the last finish, not by dollars per hour."""
    slowdown_price: float = 0.0
    """Without `integrated_cost`: dollars per hour put on slowing one job down by its solo time; small: breaks ties."""
    fifo: Fifo = "off"
    """Groups in which every job runs at its own rate; admitted by a proved bound, or by simulation with safe departure
    and a way out (slo.py)."""
    order_search: bool = False
    """Look for the best cyclic order in groups with gangs."""
    adaptive: bool = False
    """Replace worst-case phase times by an upper confidence bound of the observed ones."""
    banking: bool = False
    """Judge the SLO of a whole job (its deadline), so that time saved early may be spent later. Off: of every single
    iteration."""
    guard_iters: float = 0.0
    """With banking: iterations kept in reserve per job for the transient after every change of its group (and one more
    while it waits for its first permit)."""
    max_judged: int = 1_000_000
    """Candidates looked at closely per placement, cheapest first."""
    max_visits: int = 1500
    """Groups visited per departure by the consolidation."""
    min_saving: float = 60.0
    """Dollars a move has to save until the jobs end (their nodes are paid while they pause)."""
    move_cooldown_s: float = 5400.0
    drift_window: int = 5
    """Iterations averaged before a drifted profile is acted on."""


ROLLMUX = MuxPolicy()
DEFAULT = MuxPolicy(
    prune_saturated=False,
    consolidation=True,
    slowdown_price=0.01,
    fifo="simulated",
    order_search=True,
    adaptive=True,
    banking=True,
    guard_iters=1.0,
    max_judged=24,
)
PER_ITERATION = replace(DEFAULT, banking=False, fifo="bound", guard_iters=0.0)
"""Everything that does not need the job-level reading of an SLO."""

POLICIES = {"rollmux": ROLLMUX, "default": DEFAULT, "per-iteration": PER_ITERATION}


def policy(name: str) -> MuxPolicy:
    if name not in POLICIES:
        raise ConfigError(f"policy {name!r} is unknown; there are: {', '.join(POLICIES)}")
    return POLICIES[name]
