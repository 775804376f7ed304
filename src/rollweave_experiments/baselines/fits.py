"""Two baselines that put a job into an existing group without a look at SLOs.

random       a random group with a free place, or a new group
most-idle    the group that is idle most, on its most idle nodes; a new group only if no group has room
"""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.mux.baselines import Plain, own_group
from rollweave.mux.decisions.plan import Plan, PlanStep
from rollweave.mux.model.group import CoGroup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import meta_period
from rollweave.mux.model.policy import ROLLMUX
from rollweave.mux.model.state import ClusterState
from rollweave.seeds import generator


@dataclass(frozen=True, slots=True)
class RandomFit(Plain):
    """Chooses a random group with a free place, or a new group."""

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
    """Whether the group has a free place, enough rollout nodes and enough host memory. SLOs are ignored."""
    return (
        group.size < max_group
        and job.profile.mem_train < state.train.host_gb - group.train_mem
        and len(free_nodes(group, state, job)) >= job.profile.n_roll
    )


def free_nodes(group: CoGroup, state: ClusterState, job: MuxJob) -> list[int]:
    return [node for node in group.nodes if job.profile.mem_roll < state.rollout.host_gb - group.node_mem[node]]


@dataclass(frozen=True, slots=True)
class MostIdle(Plain):
    """Chooses the group that is idle most."""

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
    """The share of a lap in which the nodes of the group are idle, on average."""
    busy = [*(group.node_load[node] for node in group.nodes), *[group.sum_train] * group.width]
    return 1 - sum(busy) / len(busy) / meta_period(group)
