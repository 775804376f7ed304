"""Random: any group with a free place, or a new one, alike; nobody asks about SLOs."""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.mux.baselines.plain import Plain, own_group
from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.decisions.policy import ROLLMUX
from rollweave.mux.model.group import Group
from rollweave.mux.model.job import Job
from rollweave.mux.model.state import ClusterState
from rollweave.seeds import generator


@dataclass(frozen=True, slots=True)
class RandomFit(Plain):
    seed: int = 0
    max_group: int = ROLLMUX.max_group

    def arrive(self, state: ClusterState, job: Job, now: float) -> Plan:
        draw = generator(self.seed, "mux", "random", job.id)
        open_groups = [group for group in state.groups.values() if room(group, state, job, self.max_group)]
        choice = draw.randrange(len(open_groups) + 1)
        if choice == len(open_groups):
            return own_group(state, job)
        group = open_groups[choice]
        nodes = draw.sample(free_nodes(group, state, job), job.profile.n_roll)
        return Plan((Step("place", job.id, group.id, "at random", tuple(sorted(nodes))),))


def room(group: Group, state: ClusterState, job: Job, max_group: int) -> bool:
    """A free place, enough rollout nodes and enough host memory; whether anybody is slowed down is not asked."""
    return (
        group.size < max_group
        and job.profile.mem_train < state.train.host_gb - group.train_mem
        and len(free_nodes(group, state, job)) >= job.profile.n_roll
    )


def free_nodes(group: Group, state: ClusterState, job: Job) -> list[int]:
    return [node for node in group.nodes if job.profile.mem_roll < state.rollout.host_gb - group.node_mem[node]]
