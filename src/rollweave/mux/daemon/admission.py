"""Lets the scheduler of mux/ work on real nodes: translates records to profiles, and placements to seats.

On this machine a node is a core: rollout nodes are the first cores, train nodes the ones after them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from rollweave.errors import RollweaveError
from rollweave.mux.daemon.records import JobRecord, PhaseTimes
from rollweave.mux.decisions.invariants import PlanError, check_state
from rollweave.mux.decisions.plan import Plan, PlanStep, apply
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.decisions.seats import node_names, seat_in, seats_of
from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.model.state import ClusterState, rollout_pool, train_pool
from rollweave.mux.permits import Node, Seat
from rollweave.pipelines.permits import SharedPool

_STATE = TypeAdapter(ClusterState)


class NeverFits(RollweaveError):
    pass


@dataclass(slots=True)
class Admission:
    scheduler: Scheduler
    rollout_nodes: int
    train_nodes: int
    host_gb: float
    state: ClusterState = field(init=False)

    def __post_init__(self) -> None:
        # Both pools share the machine's memory: a job is held to half of it on either side.
        half = self.host_gb / 2
        self.state = ClusterState(rollout_pool(half, self.rollout_nodes), train_pool(half, self.train_nodes))

    # --------------------------------------------------------------------------------------------- decisions

    def check_fits(self, n_roll: int, n_train: int, memory_gb: float = 0.0) -> None:
        """Refuse a job that would not fit if it were alone, however long it waits."""
        if n_roll > self.rollout_nodes or n_train > self.train_nodes:
            raise NeverFits(
                f"the job asks for {n_roll} rollout and {n_train} train nodes, but this daemon has "
                f"{self.rollout_nodes} and {self.train_nodes}: ask for fewer (--rollout-nodes, --train-nodes), or "
                "start the daemon with more"
            )
        if memory_gb >= self.host_gb / 2:
            raise NeverFits(
                f"the job keeps {memory_gb:.1f} GB resident, but a pool has {self.host_gb / 2:.1f} GB of host memory: "
                "use a smaller model or batch, or another machine"
            )

    def arrive(self, record: JobRecord, now: float) -> tuple[bool, list[str]]:
        """Place a job if a group or free nodes can take it. Returns what was considered, the outcome first."""
        job = _job(record)
        plan = self.scheduler.arrive(self.state, job, now)
        try:
            self.scheduler.apply(self.state, plan, now, arriving=job)
        except PlanError as error:
            return False, [f"wait {job.id}: {error}"]
        return job.id in self.state.home, plan.explain().splitlines()

    def depart(self, job: str, now: float) -> None:
        """Take the job out of its group, also if the plan that the scheduler makes of it is refused."""
        plan = self.scheduler.depart(self.state, job, now)
        try:
            self.scheduler.apply(self.state, plan, now)
        except PlanError:
            apply(self.state, Plan((PlanStep("leave", job, self.state.home[job], "it is gone"),)), now)

    def observe(self, job: str, took: PhaseTimes, now: float) -> PhaseTimes | None:
        """One more iteration is done. Returns new worst times if the job has lost its place because of them."""
        known = self.state.jobs[job]
        known.report(known.done + 1, now)
        if not (took.t_roll and took.t_train):  # they are not known
            return None
        plan = self.scheduler.observe(self.state, job, took.t_roll, took.t_train, now)
        with suppress(PlanError):  # then all stays as it is
            self.scheduler.apply(self.state, plan, now)
        lost = [step for step in plan.steps if step.kind == "resubmit"] if job not in self.state.home else []
        return PhaseTimes(lost[0].t_roll, lost[0].t_train) if lost else None

    # ------------------------------------------------------------------------------------------------- seats

    def seat(self, job: str) -> Seat:
        return seat_in(self.state.group_of(job), job)

    def seats(self) -> dict[str, Seat]:
        return seats_of(self.state)

    def quietest(self, pool: SharedPool, count: int) -> tuple[Node, ...]:
        """Nodes for a job that has no seat yet: those with the least planned work."""
        nodes = range(self.rollout_nodes if pool == "rollout" else self.train_nodes)
        chosen = sorted(nodes, key=lambda node: (self._load(pool, node), node))[:count]
        return node_names(pool, tuple(sorted(chosen)))

    def cores(self, nodes: tuple[Node, ...], available: tuple[int, ...]) -> tuple[int, ...]:
        """The core that stands for each node; with fewer cores than nodes, neighbours share."""
        return tuple(available[self._number(node) % len(available)] for node in nodes)

    def _load(self, pool: SharedPool, node: int) -> float:
        groups = self.state.groups.values()
        if pool == "rollout":
            return sum(group.node_load.get(node, 0.0) for group in groups)
        return sum(group.sum_train for group in groups if node in group.train_nodes)

    def _number(self, node: Node) -> int:
        pool, _, number = node.partition("-")
        return int(number) + (self.rollout_nodes if pool == "train" else 0)

    # ------------------------------------------------------------------------------------------------- the disk

    def dump(self) -> dict[str, Any]:
        return {**asdict(self.state), "limits": [self.rollout_nodes, self.train_nodes]}

    def restore(self, data: dict[str, Any] | None) -> None:
        """Go back to what `dump` wrote down; None: to nothing. Raises `PlanError` if that contradicts itself."""
        self.__post_init__()
        if data is None or not data["home"]:
            return
        rollout, train = data["limits"]
        if (rollout, train) != (self.rollout_nodes, self.train_nodes):
            raise NeverFits(
                f"jobs are placed on {rollout} rollout and {train} train nodes; start the daemon with as many, or "
                "cancel them first"
            )
        self.state = _STATE.validate_python(data)
        check_state(self.state, self.scheduler.policy)


def _job(record: JobRecord) -> MuxJob:
    times, memory, cold = record.profile, record.memory_gb, record.cold_seconds
    assert times is not None
    profile = JobProfile(
        times.t_roll, times.t_train, record.n_roll, record.n_train, memory, memory, cold_roll=cold, cold_train=cold
    )
    return MuxJob(record.id, profile, record.slo, max(1, record.steps - record.progress.step))
