"""All settings of the scheduler. `rollmux` is the paper's algorithm, `default` is the one we recommend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rollweave.errors import ConfigError

Fifo = Literal["off", "bound", "simulated"]


@dataclass(frozen=True, slots=True)
class MuxPolicy:
    """The settings of a scheduler. The defaults are RollMux's Algorithm 1; any other value is an extension of it."""

    max_group: int = 5
    prune_saturated: bool = True
    """Skip groups whose T_load has reached T_cycle (Algorithm 1, line 4)."""
    forbid_oversaturated: bool = False
    consolidation: bool = False
    """After a departure, move all jobs of small groups to other groups where that costs less."""
    integrated_cost: bool = False
    """Score a placement by the dollars until the last job has finished, not by dollars per hour."""
    slowdown_price: float = 0.0
    """Without `integrated_cost`: dollars per hour for slowing one job down by its solo time. A small value decides
    between placements of equal cost."""
    fifo: Fifo = "off"
    """Whether groups may run first come, first served, with every job at its own rate: admitted by a proved bound, or
    by simulation with safe departures and a way out (slo.py)."""
    order_search: bool = False
    """Search the best cyclic order in groups with gangs."""
    adaptive: bool = False
    """Replace worst-case phase times by an upper confidence bound of the observed ones."""
    banking: bool = False
    """Apply the SLO to a whole job (its deadline), so that time saved early may be used later. Off: apply it to every
    single iteration."""
    guard_iters: float = 0.0
    """With banking: iterations kept in reserve per job for the transient after every change of its group (and one more
    while the job waits for its first phase)."""
    max_assessed: int = 1_000_000
    """The number of options that are assessed in full per placement, the cheapest first."""
    max_visits: int = 1500
    """The number of groups that the consolidation visits per departure."""
    min_saving: float = 60.0
    """The dollars that a move must save until the jobs end, because their nodes are paid while they pause."""
    move_cooldown_s: float = 5400.0
    drift_window: int = 5
    """The number of iterations that are averaged before the scheduler reacts to a drifted profile."""


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
    max_assessed=24,
)
PER_ITERATION = replace(DEFAULT, banking=False, fifo="bound", guard_iters=0.0)
"""All extensions that also work if the SLO applies to every single iteration."""

POLICIES = {"rollmux": ROLLMUX, "default": DEFAULT, "per-iteration": PER_ITERATION}


def policy(name: str) -> MuxPolicy:
    if name not in POLICIES:
        raise ConfigError(f"policy {name!r} is unknown; there are: {', '.join(POLICIES)}")
    return POLICIES[name]
