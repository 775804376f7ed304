"""Plans what happens when a job leaves: the rest of its group must keep its SLOs, and small groups may be merged.

Under round robin, and with the FIFO bound, the others keep their SLOs, because every wait gets shorter. A *simulated*
FIFO pattern does not have this property: with one phase less, the others may meet in a worse rhythm. Then the phases
of the job that left stay reserved (a phantom: its timing, without node and memory), so that the rhythm with which the
SLOs were computed goes on until the group changes again.

Consolidation: placement is greedy, and departures leave jobs alone on paid nodes, which costs most of the money. So
small groups are emptied into others where that costs less. A group is emptied completely or not at all, every job that
moves must keep its SLO including the pause of the move, and the saving until the end of the jobs must exceed the cost
of the pauses. The work per departure is limited: the group that the job left comes first, then others, as far as the
budget of group visits allows.
"""

from __future__ import annotations

from dataclasses import replace

from rollweave.mux.decisions.outlook import HOUR, Views, bill, finishes
from rollweave.mux.decisions.placement import find_place, move_steps
from rollweave.mux.decisions.plan import Plan, PlanStep, try_plan
from rollweave.mux.model.group import CoGroup, Mode
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import Verdict, assess
from rollweave.mux.model.state import ClusterState


def plan_departure(state: ClusterState, job: str, now: float, policy: MuxPolicy, why: str) -> Plan:
    """The plan for a job that leaves: a `leave` step, and the steps that the rest of its group needs."""
    group = state.group_of(job)
    leave = Plan((PlanStep("leave", job, group.id, why),))
    if group.mode == "rr" or group.size == 1:
        return leave
    rest = try_plan(state, leave, now)
    verdict = choose_mode(rest, rest.groups[group.id], now, policy)
    if verdict is not None:
        arranged = Plan((PlanStep("arrange", "", group.id, f"run {verdict.mode}", mode=verdict.mode),))
        return leave + arranged if verdict.mode != group.mode else leave
    why += "; its phases stay reserved, the others' rhythm depends on them"
    return Plan((PlanStep("reserve", job, group.id, why),))


def choose_mode(state: ClusterState, group: CoGroup, now: float, policy: MuxPolicy) -> Verdict | None:
    """The cheapest mode in which all jobs of the group keep their SLO; None if there is no such mode."""
    passed: list[tuple[float, int, Verdict]] = []
    modes: tuple[Mode, ...] = ("rr",) if group.gang or policy.fifo == "off" else ("fifo", "rr")
    for mode in modes:
        verdict = assess(group, state.jobs, now, policy, mode)
        if verdict.late is None:
            ends = {name: state.jobs[name].ends_at(now, verdict.paces[name]) for name in group.jobs}
            passed.append((bill(state, group, ends, now), len(passed), verdict))
    return min(passed)[2] if passed else None


LARGEST = 3
"""The largest size of a group that is worth emptying."""


def plan_consolidation(state: ClusterState, left: int, now: float, policy: MuxPolicy) -> Plan:
    """The moves that save money after a job has left group `left`."""
    plan = Plan()
    budget, views = policy.max_visits, Views(now, policy)
    for number in _emptying_order(state, left, now):
        if budget <= 0:
            break
        if number in state.groups:
            budget -= len(state.groups) * state.groups[number].size
            moves = _plan_emptying(state, state.groups[number], now, policy, views)
            if moves:
                state = try_plan(state, moves, now)
                plan += moves
    return plan


def _emptying_order(state: ClusterState, left: int, now: float) -> list[int]:
    """The group that the job left, then small groups; among equal ones the time decides, so that each gets visited."""
    small = [group.id for group in state.groups.values() if group.size <= LARGEST and group.id != left]
    start = int(now) % len(small) if small else 0
    small = small[start:] + small[:start]
    small.sort(key=lambda number: state.groups[number].size)
    first = [left] if left in state.groups and state.groups[left].size <= LARGEST else []
    return first + small


def _plan_emptying(state: ClusterState, group: CoGroup, now: float, policy: MuxPolicy, views: Views) -> Plan:
    """The moves of all jobs of the group, or an empty plan."""
    members = [state.jobs[name] for name in group.jobs]
    if any(now - job.moved_at < policy.move_cooldown_s or job.resumes_at >= now for job in members):
        return Plan()
    hours = (max(job.finish_at() for job in members) - now) / HOUR
    if hours * HOUR <= max(job.profile.move_s for job in members):
        return Plan()  # the jobs end before the moves would
    price = policy.min_saving * len(members)
    # What the end of the group saves, in the same unit as the scores of placements.
    if policy.integrated_cost:
        left = bill(state, group, finishes(state, group), now) - price
    else:
        left = state.group_cost(group) - price / hours
    plan = Plan()
    for job in sorted(members, key=lambda member: -member.solo_s):
        mover = replace(job)
        mover.pause(now)
        place = find_place(state, mover, now, policy, skip=group.id, below=left, views=views).best
        if place is None or place.score >= left:
            return Plan()
        left -= place.score
        moves = Plan(move_steps(state, job, place, f"empties group {group.id}"))
        state = try_plan(state, moves, now)
        plan += moves
    return plan
