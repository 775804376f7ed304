"""Most-idle: the group that idles most, on its most idle nodes; a new group only if no other has room."""

from __future__ import annotations

from dataclasses import dataclass

from rollweave.mux.baselines.plain import Plain, own_group
from rollweave.mux.baselines.random_fit import free_nodes, room
from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.decisions.policy import ROLLMUX
from rollweave.mux.model.coexec import meta_period
from rollweave.mux.model.group import Group
from rollweave.mux.model.job import Job
from rollweave.mux.model.state import ClusterState


@dataclass(frozen=True, slots=True)
class MostIdle(Plain):
    max_group: int = ROLLMUX.max_group

    def arrive(self, state: ClusterState, job: Job, now: float) -> Plan:
        open_groups = [group for group in state.groups.values() if room(group, state, job, self.max_group)]
        if not open_groups:
            return own_group(state, job)
        group = max(open_groups, key=idle)
        by_load = sorted(free_nodes(group, state, job), key=lambda node: (group.node_load[node], node))
        nodes = tuple(sorted(by_load[: job.profile.n_roll]))
        return Plan((Step("place", job.id, group.id, f"{idle(group):.0%} idle", nodes),))


def idle(group: Group) -> float:
    """1 - the mean over its nodes of the share of a meta-iteration that they work."""
    busy = [*(group.node_load[node] for node in group.nodes), *[group.sum_train] * group.width]
    return 1 - sum(busy) / len(busy) / meta_period(group)
