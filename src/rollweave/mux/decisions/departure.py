"""A job leaves; do the others still keep their promise?

Under round robin, and for the FIFO bound, always: without a member every wait is shorter. A *simulated* FIFO pattern
has no such monotony: with one phase less the others may meet in a worse rhythm. Then the leaver's turn stays reserved
(a phantom: its timing, no node, no memory), so that the rhythm the promise was computed with goes on until the group
changes again.
"""

from __future__ import annotations

from rollweave.mux.decisions.apply import tried
from rollweave.mux.decisions.horizon import bill
from rollweave.mux.decisions.plan import Plan, Step
from rollweave.mux.decisions.policy import Policy
from rollweave.mux.model.group import Group, Mode
from rollweave.mux.model.slo import Verdict, judge
from rollweave.mux.model.state import ClusterState


def left_safely(state: ClusterState, job: str, now: float, policy: Policy, why: str) -> Plan:
    """`leave`, and whatever the rest of its group needs for that."""
    group = state.group_of(job)
    leave = Plan((Step("leave", job, group.id, why),))
    if group.mode == "rr" or group.size == 1:
        return leave
    rest = tried(state, leave, now)
    verdict = rearranged(rest, rest.groups[group.id], now, policy)
    if verdict is not None:
        arranged = Plan((Step("arrange", "", group.id, f"run {verdict.mode}", mode=verdict.mode),))
        return leave + arranged if verdict.mode != group.mode else leave
    return Plan((Step("reserve", job, group.id, f"{why}; its turn is kept, the others' rhythm depends on it"),))


def rearranged(state: ClusterState, group: Group, now: float, policy: Policy) -> Verdict | None:
    """The cheapest mode in which everybody keeps the promise."""
    passed: list[tuple[float, int, Verdict]] = []
    modes: tuple[Mode, ...] = ("rr",) if group.gang or policy.fifo == "off" else ("fifo", "rr")
    for mode in modes:
        verdict = judge(group, state.jobs, now, policy, mode)
        if verdict.late is None:
            ends = {name: state.jobs[name].ends_at(now, verdict.paces[name]) for name in group.jobs}
            passed.append((bill(state, group, ends, now), len(passed), verdict))
    return min(passed)[2] if passed else None
