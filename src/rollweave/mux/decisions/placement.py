"""Chooses the place of an arriving (or moving) job: RollMux's Algorithm 1, with the reason for every refusal.

Groups are visited in creation order. Within a group, direct packing on existing rollout nodes comes first, then
scaling by just enough new rollout nodes; train nodes are never added. The cheapest place that keeps every SLO wins, or
the first of equally cheap ones. A group of its own is always possible if the pools have enough nodes.

The search has two passes, to be fast. The first (outlook.py) excludes impossible options by sums that are already
known, and computes the least cost of the others. The second assesses the options in full, beginning with the lowest
least cost, until no least cost is below the best score found. In Algorithm 1 both costs are the same, so the first
option that passes is the answer.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from rollweave.mux.decisions.outlook import HOUR, GroupOption, Newcomer, Survey, Views, bill, finishes
from rollweave.mux.decisions.plan import PlanStep, Rejection
from rollweave.mux.model.group import CoGroup, Mode
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.period import best_order
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.slo import Late, Verdict, assess
from rollweave.mux.model.state import ClusterState


@dataclass(frozen=True, slots=True)
class Placement:
    """A possible place: `nodes` of `group` (0: a new group), of which `new` come from the pool."""

    group: int
    nodes: tuple[int, ...]
    new: tuple[int, ...]
    cost: float
    """The dollars per hour that it adds."""
    score: float
    """The value to minimise: `cost`, or with `integrated_cost` the dollars until all jobs have ended."""
    mode: Mode = "rr"
    order: tuple[str, ...] = ()


@dataclass(slots=True)
class Search:
    """The result of a search for a place."""

    best: Placement | None = None
    rejections: list[Rejection] = field(default_factory=list)


def find_place(
    state: ClusterState,
    job: MuxJob,
    now: float,
    policy: MuxPolicy,
    skip: int = 0,
    below: float | None = None,
    views: Views | None = None,
) -> Search:
    """Find the best place for `job` among all groups except `skip`, and a group of its own. With `below`, only places
    with a lower score count, and no group of its own. Passing the `views` of the same decision saves work."""
    newcomer = Newcomer(job, now, policy)
    survey = Survey(state, newcomer, views or Views(now, policy))
    for group in state.groups.values():
        if group.id != skip:
            survey.visit(group)
    search = Search(_own_group(state, newcomer) if below is None else None, survey.rejections)
    survey.candidates.sort(key=attrgetter("floor"))  # the sort is stable: the first of equal options wins
    for candidate in survey.candidates[: policy.max_assessed]:
        if candidate.floor >= (search.best.score if search.best else below or math.inf):
            break
        answer = _assess_option(state, candidate, newcomer)
        if isinstance(answer, Rejection):
            search.rejections.append(answer)
        elif search.best is None or answer.score < search.best.score:
            search.best = answer
    return search


def _own_group(state: ClusterState, newcomer: Newcomer) -> Placement | None:
    profile = newcomer.job.profile
    if not (state.rollout.has(profile.n_roll) and state.train.has(profile.n_train)):
        return None
    nodes = state.rollout.peek(profile.n_roll)
    cost = state.rollout.price * profile.n_roll + state.train.price * profile.n_train
    score = cost * newcomer.left * newcomer.job.profile.solo_s / HOUR if newcomer.integrated else cost
    return Placement(0, nodes, nodes, cost, score)


def _assess_option(state: ClusterState, candidate: GroupOption, newcomer: Newcomer) -> Placement | Rejection:
    """Assess an option in full: whether the group can run with the new job, in which mode, and at what score."""
    group, job, policy = candidate.group, newcomer.job, newcomer.policy
    trial = group.copy()
    trial.add(job.id, newcomer.at(group.width).phases, candidate.nodes)
    trial.order = best_order(trial) if policy.order_search and trial.gang else trial.order
    jobs = ChainMap({job.id: job}, state.jobs)  # without copying thousands of jobs for each option
    verdicts = [assess(trial, jobs, newcomer.now, policy, mode) for mode in _modes(trial, candidate, policy)]
    passed = [verdict for verdict in verdicts if verdict.late is None]
    if not passed:
        late = verdicts[-1].late
        assert late is not None
        return _too_late(group.id, late, jobs[late.job])
    cost = state.rollout.price * len(candidate.new)
    scored = [(_score(state, jobs, group, trial, verdict, newcomer, cost), verdict.mode) for verdict in passed]
    score, mode = min(scored, key=lambda pair: pair[0])
    return Placement(group.id, candidate.nodes, candidate.new, cost, score, mode, trial.order)


def _modes(trial: CoGroup, candidate: GroupOption, policy: MuxPolicy) -> tuple[Mode, ...]:
    if policy.fifo == "off" or trial.gang:
        return ("rr",)
    if not candidate.round_robin:
        return ("fifo",)
    return ("rr", "fifo")


def _score(
    state: ClusterState,
    jobs: Mapping[str, MuxJob],
    group: CoGroup,
    trial: CoGroup,
    verdict: Verdict,
    newcomer: Newcomer,
    cost: float,
) -> float:
    if newcomer.integrated:
        ends = {name: jobs[name].ends_at(newcomer.now, verdict.paces[name]) for name in trial.jobs}
        return bill(state, trial, ends, newcomer.now) - bill(state, group, finishes(state, group), newcomer.now)
    if not newcomer.policy.slowdown_price:
        return cost
    # By how many solo times the placement slows all jobs of the group down together.
    before = sum(jobs[name].pace / jobs[name].solo_s for name in group.jobs)
    after = sum(pace / jobs[name].solo_s for name, pace in verdict.paces.items() if name in jobs)
    return cost + newcomer.policy.slowdown_price * (after - before)


def _too_late(group: int, late: Late, job: MuxJob) -> Rejection:
    text = f"SLO of job {{job}}: {{left:.0f}} s > {{right:.0f}} s ({job.slo:.2f} x {job.solo_s:.0f} s at submission)"
    return Rejection(group, text, late.seconds, late.limit, late.job)


def placement_steps(state: ClusterState, job: MuxJob, place: Placement) -> tuple[PlanStep, ...]:
    """The steps that place an arriving job."""
    if place.group == 0:
        return (_open_step(state, job, place, f"new group, +${place.cost:.2f}/h"),)
    how = f"rollout scaling by {len(place.new)}" if place.new else "direct packing"
    why = f"{how} into group {place.group}, +${place.cost:.2f}/h"
    return (PlanStep("place", job.id, place.group, why, place.nodes, place.new), *arrange_steps(state, place))


def move_steps(state: ClusterState, job: MuxJob, place: Placement, why: str) -> tuple[PlanStep, ...]:
    """The steps that move a running job."""
    if place.group == 0:
        return (replace(_open_step(state, job, place, f"to a new group: {why}"), kind="move"),)
    text = f"to group {place.group}, +${place.cost:.2f}/h: {why}"
    return (PlanStep("move", job.id, place.group, text, place.nodes, place.new), *arrange_steps(state, place))


def _open_step(state: ClusterState, job: MuxJob, place: Placement, why: str) -> PlanStep:
    train = state.train.peek(job.profile.n_train)
    return PlanStep("open", job.id, state.next_group, why, place.nodes, place.new, train)


def arrange_steps(state: ClusterState, place: Placement) -> tuple[PlanStep, ...]:
    """The step that sets the group's new mode and order, if they change."""
    group = state.groups[place.group]
    if (place.mode, place.order) == (group.mode, group.order):
        return ()
    return (PlanStep("arrange", "", place.group, f"run {place.mode}", mode=place.mode, order=place.order),)
