"""Lists all policies by name, each with its decider, its pools, and how it changes a job of the workload."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field

from rollweave.errors import ConfigError
from rollweave.mux.baselines.gavel import Gavel
from rollweave.mux.baselines.opt import Opt, Regroup
from rollweave.mux.baselines.simple import MostIdle, RandomFit, Solo, colocated_job, colocated_state
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import POLICIES, MuxPolicy
from rollweave.mux.model.state import ClusterState
from rollweave.mux.simulation.replay import Decider


def _unchanged(job: MuxJob) -> MuxJob:
    return job


@dataclass(frozen=True, slots=True)
class Setup:
    """What a policy needs for a replay."""

    decider: Decider
    state: ClusterState = field(default_factory=ClusterState)
    prepare: Callable[[MuxJob], MuxJob] = _unchanged


BASELINES: dict[str, Callable[[int], Setup]] = {
    "solo-d": lambda seed: Setup(Solo()),
    "colocated": lambda seed: Setup(Solo(), colocated_state(), colocated_job),
    "gavel+": lambda seed: Setup(Gavel()),
    "random": lambda seed: Setup(RandomFit(seed)),
    "most-idle": lambda seed: Setup(MostIdle()),
    "opt": lambda seed: Setup(Opt()),
    "regroup": lambda seed: Setup(Regroup()),
}

ALSO = {"solo": "solo-d", "verl": "colocated", "co-located": "colocated", "gavel": "gavel+", "mostidle": "most-idle"}
"""Other usual names of the policies."""


def names() -> list[str]:
    return [*POLICIES, *BASELINES]


def setup(policy: str | MuxPolicy, seed: int) -> Setup:
    """The setup of a policy, by its name or its settings."""
    if isinstance(policy, MuxPolicy):
        return Setup(Scheduler(policy))
    name = ALSO.get(policy.lower(), policy.lower())
    if name in POLICIES:
        return Setup(Scheduler(POLICIES[name]))
    if name not in BASELINES:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"policy {name!r} is unknown: {hint}there are: {', '.join(names())}")
    return BASELINES[name](seed)
