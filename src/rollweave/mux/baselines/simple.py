"""What every simple baseline shares: a job that leaves just leaves, and nobody ever looks back.

Solo-D: every job has its own rollout and train nodes. Disaggregation as it is without multiplexing.

Co-located on train nodes (veRL): no rollout nodes at all, both phases alternate on the same H800s.

In the scheduler's terms the whole iteration is one long train phase and rollout nodes cost nothing. RollMux's trace
totals put such an iteration at about the length of a disaggregated one (what the faster decoding of two phases on one
node gains, loading and unloading costs): 262.8 k$ against 347.9 k$ at 42.24 against 57.04 $/h a node pair.

Random: any group with a free place, or a new one, alike; nobody asks about SLOs.

Most-idle: the group that idles most, on its most idle nodes; a new group only if no other has room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollweave.mux.decisions.plan import Plan, PlanStep, apply
from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import meta_period
from rollweave.mux.model.policy import ROLLMUX
from rollweave.mux.model.state import ClusterState, NodePool, train_pool
from rollweave.seeds import generator


class Plain:
    """A policy that only decides at arrivals; subclasses say where a job goes."""

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        return own_group(state, job)

    def depart(self, state: ClusterState, job: str, now: float) -> Plan:
        return Plan((PlanStep("leave", job, state.home[job], "finished"),))

    def fail(self, state: ClusterState, job: str, now: float) -> Plan:
        return Plan((PlanStep("leave", job, state.home[job], "failed"),))

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        return Plan()

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: MuxJob | None = None) -> None:
        # Not through the scheduler: its checks refuse the broken promises that these baselines are known for.
        apply(state, plan, now, arriving)


def own_group(state: ClusterState, job: MuxJob) -> Plan:
    """Nodes of its own, or wait for them."""
    n_roll, n_train = job.profile.n_roll, job.profile.n_train
    if not (state.rollout.has(n_roll) and state.train.has(n_train)):
        return Plan((PlanStep("wait", job.id, why="the pools have no free nodes"),))
    nodes, train = state.rollout.peek(n_roll), state.train.peek(n_train)
    return Plan((PlanStep("open", job.id, state.next_group, "nodes of its own", nodes, nodes, train),))


class Solo(Plain):
    """Everything is inherited: a group of its own for everybody."""


ITERATION = 1.0
"""A co-located iteration against a disaggregated one."""
NO_ROLLOUT_S = 1e-6


def colocated_job(job: MuxJob, iteration: float = ITERATION) -> MuxJob:
    """The same work and the same SLO, measured against the same disaggregated iteration."""
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
    return ClusterState(NodePool(price=0.0), train_pool())


@dataclass(frozen=True, slots=True)
class RandomFit(Plain):
    seed: int = 0
    max_group: int = ROLLMUX.max_group

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        draw = generator(self.seed, "mux", "random", job.id)
        open_groups = [group for group in state.groups.values() if room(group, state, job, self.max_group)]
        choice = draw.randrange(len(open_groups) + 1)
        if choice == len(open_groups):
            return own_group(state, job)
        group = open_groups[choice]
        nodes = draw.sample(free_nodes(group, state, job), job.profile.n_roll)
        return Plan((PlanStep("place", job.id, group.id, "at random", tuple(sorted(nodes))),))


def room(group: CoGroup, state: ClusterState, job: MuxJob, max_group: int) -> bool:
    """A free place, enough rollout nodes and enough host memory; whether anybody is slowed down is not asked."""
    return (
        group.size < max_group
        and job.profile.mem_train < state.train.host_gb - group.train_mem
        and len(free_nodes(group, state, job)) >= job.profile.n_roll
    )


def free_nodes(group: CoGroup, state: ClusterState, job: MuxJob) -> list[int]:
    return [node for node in group.nodes if job.profile.mem_roll < state.rollout.host_gb - group.node_mem[node]]


@dataclass(frozen=True, slots=True)
class MostIdle(Plain):
    max_group: int = ROLLMUX.max_group

    def arrive(self, state: ClusterState, job: MuxJob, now: float) -> Plan:
        open_groups = [group for group in state.groups.values() if room(group, state, job, self.max_group)]
        if not open_groups:
            return own_group(state, job)
        group = max(open_groups, key=idle)
        by_load = sorted(free_nodes(group, state, job), key=lambda node: (group.node_load[node], node))
        nodes = tuple(sorted(by_load[: job.profile.n_roll]))
        return Plan((PlanStep("place", job.id, group.id, f"{idle(group):.0%} idle", nodes),))


def idle(group: CoGroup) -> float:
    """1 - the mean over its nodes of the share of a meta-iteration that they work."""
    busy = [*(group.node_load[node] for node in group.nodes), *[group.sum_train] * group.width]
    return 1 - sum(busy) / len(busy) / meta_period(group)
