"""Lists all policies by name, each with its decider, its pools, and how it changes a job of the workload."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

from rollweave.errors import ConfigError
from rollweave.mux.baselines.simple import Solo, colocated_job, colocated_state
from rollweave.mux.decisions.scheduler import Decider, Scheduler
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import POLICIES, MuxPolicy
from rollweave.mux.model.state import ClusterState


def _unchanged(job: MuxJob) -> MuxJob:
    return job


@dataclass(frozen=True, slots=True)
class Setup:
    """What a policy needs for a replay."""

    decider: Decider
    state: ClusterState = field(default_factory=ClusterState)
    prepare: Callable[[MuxJob], MuxJob] = _unchanged


BASELINES: dict[str, Callable[[], Setup]] = {
    "solo-d": lambda: Setup(Solo()),
    "colocated": lambda: Setup(Solo(), colocated_state(), colocated_job),
}

ALSO = {"solo": "solo-d", "verl": "colocated", "co-located": "colocated", "gavel": "gavel+", "mostidle": "most-idle"}
"""Other usual names of the policies."""


def setup(policy: str | MuxPolicy, seed: int) -> Setup:
    """The setup of a policy, by its name or its settings."""
    if isinstance(policy, MuxPolicy):
        return Setup(Scheduler(policy))
    name = ALSO.get(policy.lower(), policy.lower())
    if name in POLICIES:
        return Setup(Scheduler(POLICIES[name]))
    if name in BASELINES:
        return BASELINES[name]()
    others = _policies_of_the_papers()
    if name not in others:
        names = [*POLICIES, *BASELINES, *others]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"policy {name!r} is unknown: {hint}there are: {', '.join(names)}")
    return Setup(others[name](seed))


def _policies_of_the_papers() -> dict[str, Callable[[int], Decider]]:
    """The policies of the experiments, which are a package of their own and may be left out."""
    if not find_spec("rollweave_experiments"):
        return {}
    policies: dict[str, Callable[[int], Decider]] = import_module("rollweave_experiments.baselines").POLICIES
    return policies
