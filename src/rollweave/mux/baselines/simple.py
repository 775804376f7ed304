"""The simple baselines: they decide only when a job arrives, and do nothing when a job leaves.

Solo-D       every job has its own rollout and train nodes: disaggregation without multiplexing
co-located   both phases alternate on train nodes, without rollout nodes (veRL)

The policies that only the papers compare with (Gavel+, random, most-idle, Opt, regroup) are in the package of the
experiments.
"""

from __future__ import annotations

from dataclasses import replace

from rollweave.mux.decisions.plan import Plan, PlanStep, apply
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.state import ClusterState, NodePool, train_pool


class Plain:
    """A policy that decides only at arrivals. Subclasses choose where a job goes."""

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        return own_group(state, job)

    def depart(self, state: ClusterState, job: str, now: float, why: str = "finished") -> Plan:
        return Plan((PlanStep("leave", job, state.home[job], why),))

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        return Plan()

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        # Without the scheduler's checks, which would refuse the broken SLOs of these baselines.
        apply(state, plan, now, arriving)


def own_group(state: ClusterState, job: MuxJob) -> Plan:
    """Give the job nodes of its own, or let it wait for them."""
    n_roll, n_train = job.profile.n_roll, job.profile.n_train
    if not (state.rollout.has(n_roll) and state.train.has(n_train)):
        return Plan((PlanStep("wait", job.id, why="the pools have no free nodes"),))
    nodes, train = state.rollout.peek(n_roll), state.train.peek(n_train)
    return Plan((PlanStep("open", job.id, state.next_group, "nodes of its own", nodes, nodes, train),))


class Solo(Plain):
    """Every job gets a group of its own, which is what `Plain` does."""


ITERATION = 1.0
"""The length of a co-located iteration, relative to a disaggregated one.

RollMux's totals for a trace give about the same length (faster decoding on the better devices gains what loading and
unloading costs): 262.8 k$ and 347.9 k$, at 42.24 and 57.04 $/h for a pair of nodes.
"""
NO_ROLLOUT_S = 1e-6


def colocated_job(job: MuxJob, iteration: float = ITERATION) -> MuxJob:
    """The same job, co-located: its whole iteration is one long train phase. Work and SLO stay the same."""
    whole = job.profile.solo_s * iteration
    profile = replace(
        job.profile,
        t_roll=NO_ROLLOUT_S,
        t_train=whole - NO_ROLLOUT_S,
        t_sync=0.0,
        n_roll=1,
        mem_roll=0.0,
        switch_roll=0.0,
        switch_train=0.0,
    )
    return replace(job, profile=profile)


def colocated_state() -> ClusterState:
    """A state in which rollout nodes cost nothing, because co-located jobs do not use them."""
    return ClusterState(NodePool(price=0.0), train_pool())
