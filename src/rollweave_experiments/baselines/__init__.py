"""What the papers compare with: policies, by their names in `rollweave mux simulate --policy`, and a lower bound."""

from __future__ import annotations

from collections.abc import Callable

from rollweave.mux.decisions.scheduler import Decider
from rollweave_experiments.baselines.bound import lower_bound
from rollweave_experiments.baselines.fits import MostIdle, RandomFit
from rollweave_experiments.baselines.gavel import Gavel
from rollweave_experiments.baselines.opt import Opt, Regroup

__all__ = ["POLICIES", "lower_bound"]

POLICIES: dict[str, Callable[[int], Decider]] = {
    "gavel+": lambda seed: Gavel(),
    "random": lambda seed: RandomFit(seed),
    "most-idle": lambda seed: MostIdle(),
    "opt": lambda seed: Opt(),
    "regroup": lambda seed: Regroup(),
}
