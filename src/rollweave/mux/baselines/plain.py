"""What every simple baseline shares: a job that leaves just leaves, and nobody ever looks back."""

from __future__ import annotations

from rollweave.mux.decisions.apply import apply
from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.model.job import Job
from rollweave.mux.model.state import ClusterState


class Plain:
    """A policy that only decides at arrivals; subclasses say where a job goes."""

    def arrive(self, state: ClusterState, job: Job, now: float) -> Plan:
        return own_group(state, job)

    def depart(self, state: ClusterState, job: str, now: float) -> Plan:
        return Plan((Step("leave", job, state.home[job], "finished"),))

    def fail(self, state: ClusterState, job: str, now: float) -> Plan:
        return Plan((Step("leave", job, state.home[job], "failed"),))

    def observe(self, state: ClusterState, job: str, t_roll: float, t_train: float, now: float) -> Plan:
        return Plan()

    def apply(self, state: ClusterState, plan: Plan, now: float, arriving: Job | None = None) -> None:
        # Not through the scheduler: its checks refuse the broken promises that these baselines are known for.
        apply(state, plan, now, arriving)


def own_group(state: ClusterState, job: Job) -> Plan:
    """Nodes of its own, or wait for them."""
    n_roll, n_train = job.profile.n_roll, job.profile.n_train
    if not (state.rollout.has(n_roll) and state.train.has(n_train)):
        return Plan((Step("wait", job.id, why="the pools have no free nodes"),))
    nodes, train = state.rollout.peek(n_roll), state.train.peek(n_train)
    return Plan((Step("open", job.id, state.next_group, "nodes of its own", nodes, nodes, train),))
