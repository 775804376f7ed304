"""Lists all policies by name. The two simple ones, which any policy may be compared with, are defined here:

Solo-D       every job has its own rollout and train nodes: disaggregation without multiplexing
co-located   both phases alternate on train nodes, without rollout nodes (veRL)

What only the papers compare with (Gavel+, random, most-idle, Opt, regroup, a lower bound) is in the package of the
experiments, which may be left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from rollweave.errors import ConfigError
from rollweave.mux.decisions.plan import Plan, PlanStep, apply
from rollweave.mux.decisions.scheduler import Decider, Scheduler
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import POLICIES, MuxPolicy
from rollweave.mux.model.state import ClusterState, NodePool, train_pool


class Plain:
    """Decides only at arrivals, and gives every job nodes of its own (Solo-D). Subclasses choose other places; some of
    them break SLOs, so their plans are applied without the scheduler's checks."""

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        return own_group(state, job)

    def depart(self, state: ClusterState, job: str, now: float, why: str = "finished") -> Plan:
        return Plan((PlanStep("leave", job, state.home[job], why),))

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        return Plan()

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        apply(state, plan, now, arriving)


def own_group(state: ClusterState, job: MuxJob) -> Plan:
    """Give the job nodes of its own, or let it wait for them."""
    n_roll, n_train = job.profile.n_roll, job.profile.n_train
    if not (state.rollout.has(n_roll) and state.train.has(n_train)):
        return Plan((PlanStep("wait", job.id, why="the pools have no free nodes"),))
    nodes, train = state.rollout.peek(n_roll), state.train.peek(n_train)
    return Plan((PlanStep("open", job.id, state.next_group, "nodes of its own", nodes, nodes, train),))


NO_ROLLOUT_S = 1e-6


def colocated_job(job: MuxJob) -> MuxJob:
    """The same job, co-located: its whole iteration is one long train phase. Work and SLO stay the same.

    The iteration is as long as a disaggregated one, because RollMux's totals for a trace say so (262.8 k$ and 347.9 k$
    at 42.24 and 57.04 $/h): faster decoding on the better devices gains what loading and unloading costs.
    """
    profile = replace(
        job.profile,
        t_roll=NO_ROLLOUT_S,
        t_train=job.profile.solo_s - NO_ROLLOUT_S,
        t_sync=0.0,
        n_roll=1,
        mem_roll=0.0,
        switch_roll=0.0,
        switch_train=0.0,
    )
    return replace(job, profile=profile)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a policy needs for a replay: its decider, its pools, and how it changes a job of the workload."""

    decider: Decider
    state: ClusterState = field(default_factory=ClusterState)
    prepare: Callable[[MuxJob], MuxJob] = field(default=lambda job: job)


BASELINES: dict[str, Callable[[], Setup]] = {
    "solo-d": lambda: Setup(Plain()),
    # Rollout nodes cost nothing here, because co-located jobs do not use them.
    "colocated": lambda: Setup(Plain(), ClusterState(NodePool(price=0.0), train_pool()), colocated_job),
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
    papers = papers_comparison()
    others: dict[str, Callable[[int], Decider]] = papers.POLICIES if papers else {}
    if name not in others:
        names = [*POLICIES, *BASELINES, *others]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"policy {name!r} is unknown: {hint}there are: {', '.join(names)}")
    return Setup(others[name](seed))


def papers_comparison() -> ModuleType | None:
    """What the experiments compare with: `POLICIES` and `lower_bound`; None if their package was left out."""
    return import_module("rollweave_experiments.baselines") if find_spec("rollweave_experiments") else None
