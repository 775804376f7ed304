"""A job leaves; do the others still keep their promise?

Under round robin, and for the FIFO bound, always: without a member every wait is shorter. A *simulated* FIFO pattern
has no such monotony: with one phase less the others may meet in a worse rhythm. Then the leaver's phases stay reserved
(a phantom: their timing, no node, no memory), so that the rhythm the promise was computed with goes on until the group
changes again.

Tidying up after a departure: small groups are emptied into others where that costs less.

Placement is greedy and departures leave jobs alone on paid nodes; that is where most of the money is lost. A group is
emptied completely or not at all, every mover must keep its promise including the pause of the move, and the saving
until the end of the jobs must exceed what the pauses cost. Work per departure is bounded: the group that was left
comes first, then others as far as the budget of group visits reaches.
"""

from __future__ import annotations

from dataclasses import replace

from rollweave.mux.decisions.outlook import HOUR, Views, bill, finishes
from rollweave.mux.decisions.placement import find_place, moved
from rollweave.mux.decisions.plan import Plan, PlanStep, tried
from rollweave.mux.model.group import CoGroup, Mode
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import Verdict, assess
from rollweave.mux.model.state import ClusterState


def left_safely(state: ClusterState, job: str, now: float, policy: MuxPolicy, why: str) -> Plan:
    """`leave`, and whatever the rest of its group needs for that."""
    group = state.group_of(job)
    leave = Plan((PlanStep("leave", job, group.id, why),))
    if group.mode == "rr" or group.size == 1:
        return leave
    rest = tried(state, leave, now)
    verdict = rearranged(rest, rest.groups[group.id], now, policy)
    if verdict is not None:
        arranged = Plan((PlanStep("arrange", "", group.id, f"run {verdict.mode}", mode=verdict.mode),))
        return leave + arranged if verdict.mode != group.mode else leave
    return Plan((PlanStep("reserve", job, group.id, f"{why}; its turn is kept, the others' rhythm depends on it"),))


def rearranged(state: ClusterState, group: CoGroup, now: float, policy: MuxPolicy) -> Verdict | None:
    """The cheapest mode in which everybody keeps the promise."""
    passed: list[tuple[float, int, Verdict]] = []
    modes: tuple[Mode, ...] = ("rr",) if group.gang or policy.fifo == "off" else ("fifo", "rr")
    for mode in modes:
        verdict = assess(group, state.jobs, now, policy, mode)
        if verdict.late is None:
            ends = {name: state.jobs[name].ends_at(now, verdict.paces[name]) for name in group.jobs}
            passed.append((bill(state, group, ends, now), len(passed), verdict))
    return min(passed)[2] if passed else None


LARGEST = 3
"""Members of a group that is worth emptying."""


def consolidated(state: ClusterState, left: int, now: float, policy: MuxPolicy) -> Plan:
    """The moves worth making now that a job has left group `left`."""
    plan = Plan()
    budget, views = policy.max_visits, Views(now, policy)
    for number in _by_promise(state, left, now):
        if budget <= 0:
            break
        if number in state.groups:
            budget -= len(state.groups) * state.groups[number].size
            moves = _emptied(state, state.groups[number], now, policy, views)
            if moves:
                state = tried(state, moves, now)
                plan += moves
    return plan


def _by_promise(state: ClusterState, left: int, now: float) -> list[int]:
    """The group just left, then small ones; among equals the clock decides, so that each is looked at some time."""
    small = [group.id for group in state.groups.values() if group.size <= LARGEST and group.id != left]
    start = int(now) % len(small) if small else 0
    small = small[start:] + small[:start]
    small.sort(key=lambda number: state.groups[number].size)
    first = [left] if left in state.groups and state.groups[left].size <= LARGEST else []
    return first + small


def _emptied(state: ClusterState, group: CoGroup, now: float, policy: MuxPolicy, views: Views) -> Plan:
    """Moves of all members of the group, or none."""
    members = [state.jobs[name] for name in group.jobs]
    if any(now - job.moved_at < policy.move_cooldown_s or job.resumes_at >= now for job in members):
        return Plan()
    hours = (max(job.finish_at() for job in members) - now) / HOUR
    if hours * HOUR <= max(job.profile.move_s for job in members):
        return Plan()  # done before the move would be
    price = policy.min_saving * len(members)
    left = _worth(state, group, now, policy) - (price if policy.integrated_cost else price / hours)
    plan = Plan()
    for job in sorted(members, key=lambda member: -member.solo_s):
        mover = replace(job)
        mover.pause(now)
        place = find_place(state, mover, now, policy, skip=group.id, below=left, views=views).best
        if place is None or place.score >= left:
            return Plan()
        left -= place.score
        moves = Plan(moved(state, job, place, f"empties group {group.id}"))
        state = tried(state, moves, now)
        plan += moves
    return plan


def _worth(state: ClusterState, group: CoGroup, now: float, policy: MuxPolicy) -> float:
    """What its end saves, in the currency of placement scores."""
    if not policy.integrated_cost:
        return state.group_cost(group)
    return bill(state, group, finishes(state, group), now)
