"""Figure 10: compares the work per second and dollar of three small groups with every job on nodes of its own."""

from __future__ import annotations

from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import meta_period
from rollweave.mux.model.state import ClusterState
from rollweave_experiments.baselines.gavel import best_shares
from rollweave_experiments.claims.rollmux import MICRO
from rollweave_experiments.frame import Experiment, Measurement
from rollweave_experiments.rollmux.reality import Migration, migrated_period
from rollweave_experiments.rollmux.types import TYPES, Type, group

A, C, D, E = (TYPES[name] for name in "ACDE")
GROUPS = {
    "A x 2": group([("1", A, (0,)), ("2", A, (0,))], 1),
    "D x 2 + E": group([("1", D, (0,)), ("2", D, (1,)), ("3", E, (2,))], 1),
    "C + D x 2": group([("1", C, (0, 1)), ("2", D, (0,)), ("3", D, (1,))], 2),
}
MEMBERS = {"A x 2": [A, A], "D x 2 + E": [D, D, E], "C + D x 2": [C, D, D]}
PRICES = ClusterState()


def measure(seed: int, small: bool) -> Measurement:
    values = {}
    for name, together in GROUPS.items():
        ours = rollmux(together)
        for other, theirs in (("Solo-D", solo), ("co-located", colocated), ("Gavel+", gavel)):
            values[f"{name}: RollMux / {other}"] = ours / theirs(MEMBERS[name])
    floors = {"Solo-D": 1.5, "co-located": 1.0, "Gavel+": 1.0}
    holds = {
        f"C + D x 2: RollMux / {other}": values[f"C + D x 2: RollMux / {other}"] > least
        for other, least in floors.items()
    }
    return Measurement(values, holds)


def rollmux(together: CoGroup) -> float:
    """Iterations per second, divided by dollars per hour."""
    period = meta_period(together) if together.gang else migrated_period(together, Migration())
    return together.size / period / PRICES.group_cost(together)


def solo(members: list[Type]) -> float:
    return _alone(members, PRICES.rollout.price + PRICES.train.price)


def colocated(members: list[Type]) -> float:
    return _alone(members, PRICES.train.price)


def _alone(members: list[Type], price: float) -> float:
    dollars = sum(price * kind.nodes for kind in members)
    return sum(1 / (kind.t_roll + kind.t_train) for kind in members) / dollars


def gavel(members: list[Type]) -> float:
    speed = dollars = 0.0
    for kind in members:
        # This comparison is about throughput only, so there is no SLO.
        shares = best_shares(MuxJob("", kind.profile(), 1e9, 1), PRICES)
        speed += 1 / (kind.t_roll * kind.nodes / shares.rollout + kind.t_train * kind.nodes / shares.train)
        dollars += shares.rollout * PRICES.rollout.price + shares.train * PRICES.train.price
    return speed / dollars


EXPERIMENT = Experiment(MICRO, measure)
