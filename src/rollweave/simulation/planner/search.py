"""The search: estimate all candidates, simulate the best few, and those that lead for longer.

Every simulation measures whole periods of 1 + alpha steps, after one such period in which the pipeline fills. A
candidate is first simulated briefly. If it then is the best so far, its simulation goes on until the interval of its
throughput is narrow: what is printed of the best one is what a long run gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median

from rollweave.config.planning import PlanConfig
from rollweave.simulation.measure import steps_of_a_period
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.planner.candidates import Candidate, candidates
from rollweave.simulation.planner.estimate import Estimate, Estimator
from rollweave.simulation.simulate import simulate

BRIEFLY = 2
"""Measured steps of a brief simulation, at least; whole periods of them."""
LONGEST = 30
"""Steps of a simulation, at most, its warm-up included."""
PERIODS = 3
"""Measured periods of a simulation that is not brief, at least: two say next to nothing about a spread."""
NARROW = 0.06
"""Half of an interval that is narrow enough, as a share of the throughput."""
TURNS = 500_000
"""Simulated turns that a search may spend: half a minute or so."""
FEWEST, MOST = 3, 24
"""Candidates to simulate, whatever they cost."""
FINALISTS = 3
"""The best one is always simulated for longer; so many if there are turns left for it."""
WAITING = 0.2
"""Idle share of a trainer that waits for data."""

Progress = Callable[[str], None]
"""Hears what is simulated next."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate that was simulated."""

    candidate: Candidate
    estimate: Estimate
    outcome: SimulationResult
    dollars_per_hour: float
    is_final: bool = False
    """Not simulated briefly only: until the interval was narrow, or for as long as a simulation may take."""

    @property
    def dollars_per_step(self) -> float:
        return self.dollars_per_hour * self.outcome.step_seconds / 3600

    @property
    def margin(self) -> float | None:
        """Half of the 95 % interval of the throughput, as a share of it. A brief simulation has too few periods."""
        return self.outcome.throughput_margin if self.is_final else None


@dataclass(frozen=True, slots=True)
class Recommendation:
    choices: list[Choice]
    """The best first, without twins."""
    considered: int
    simulated: int
    estimator: Estimator


def plan(config: PlanConfig, progress: Progress = lambda _: None) -> Recommendation:
    estimator = Estimator(config)
    every = [estimator(each) for each in candidates(config)]
    estimates = sorted(_without_equal_estimates(every), key=lambda e: _guess(config, e))
    progress(f"{len(every):,} candidates estimated")
    tried = _try(config, estimator, estimates, progress)
    choices = _simulate_finalists(config, estimator, without_twins(tried), progress)
    return Recommendation(choices, len(every), len(tried), estimator)


def _try(config: PlanConfig, estimator: Estimator, estimates: Sequence[Estimate], progress: Progress) -> list[Choice]:
    tried: list[Choice] = []
    for estimate in _promising(config, estimator, estimates, tried):
        if len(tried) >= MOST or (len(tried) >= FEWEST and _spent(estimator, tried) >= TURNS):
            break
        progress(f"simulating number {len(tried) + 1}: {estimate.candidate}")
        best = min((merit(config, choice)[0] for choice in tried), default=inf)
        tried.append(assess(config, estimate, best))
    return tried


def _simulate_finalists(
    config: PlanConfig, estimator: Estimator, choices: list[Choice], progress: Progress
) -> list[Choice]:
    """Simulate those that lead for longer, until `FINALISTS` have been, or the turns are spent (but for the leader)."""
    spent = _spent(estimator, choices)
    while True:
        choices.sort(key=lambda choice: merit(config, choice))
        place = next((n for n, choice in enumerate(choices[:FINALISTS]) if not choice.is_final), None)
        if place is None or (place > 0 and spent >= TURNS):
            return choices
        progress(f"simulating for longer: {choices[place].candidate}")
        choices[place] = assess(config, choices[place].estimate)
        spent += _spent(estimator, [choices[place]])


def _spent(estimator: Estimator, choices: Sequence[Choice]) -> float:
    """Simulated turns."""
    return estimator.batch * estimator.mean_turns * sum(choice.outcome.steps for choice in choices)


def assess(config: PlanConfig, estimate: Estimate, to_beat: float = inf) -> Choice:
    """Simulate it briefly; if it is then better than `to_beat`, until the interval of its throughput is narrow."""
    candidate, dollars = estimate.candidate, estimate.dollars_per_hour
    period = steps_of_a_period(candidate.alpha)
    brief = _brief_steps(candidate.alpha)
    longest = max(1 + PERIODS, LONGEST // period) * period

    def enough(found: SimulationResult) -> bool:
        if found.steps % period or found.steps < brief:
            return False
        leads = merit(config, Choice(candidate, estimate, found, dollars))[0] < to_beat
        if not leads:
            return found.periods < PERIODS
        margin = found.throughput_margin
        return found.periods >= PERIODS and margin is not None and margin <= NARROW

    outcome = simulate(candidate.scenario(config, longest, period), enough=enough)
    return Choice(candidate, estimate, outcome, dollars, is_final=outcome.periods >= PERIODS)


def _brief_steps(alpha: float) -> int:
    """Of a brief simulation, its warm-up included."""
    period = steps_of_a_period(alpha)
    return period + ceil(BRIEFLY / period) * period


def _without_equal_estimates(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Without redundancy where the estimate says that it changes nothing: a simulation is better spent elsewhere."""
    falling = sorted(estimates, key=lambda each: each.candidate, reverse=True)  # of equals, the last one is kept
    return list({(replace(each.candidate, redundancy=0.0), each.step_seconds): each for each in falling}.values())


def without_twins(choices: Sequence[Choice]) -> list[Choice]:
    """Without candidates that had the same steps as another with less redundancy: it changed nothing there."""
    falling = sorted(choices, key=lambda each: each.candidate, reverse=True)  # of equals, the last one is kept
    return list({_steps_of(choice): choice for choice in falling}.values())


def _steps_of(choice: Choice) -> tuple[object, ...]:
    """Those that every simulation of such a candidate has, however long it went on."""
    rows = choice.outcome.rows[: _brief_steps(choice.candidate.alpha)]
    return replace(choice.candidate, redundancy=0.0), *(row["time/step"] for row in rows)


def merit(config: PlanConfig, choice: Choice) -> tuple[float, float, Candidate]:
    """Less is better; among equals the cheaper one.

    By trained token, not by step: redundancy and staleness decide which episodes the few simulated steps consume, and
    a step of short ones is no achievement.
    """
    seconds = 1.0 / choice.outcome.tokens_per_second
    if config.objective == "cost":
        return seconds * choice.dollars_per_hour, seconds, choice.candidate
    return seconds, choice.dollars_per_hour, choice.candidate


def _guess(config: PlanConfig, estimate: Estimate) -> tuple[float, float, Candidate]:
    if config.objective == "cost":
        return estimate.dollars_per_step, estimate.step_seconds, estimate.candidate
    return estimate.step_seconds, estimate.dollars_per_step, estimate.candidate


def _promising(
    config: PlanConfig, estimator: Estimator, estimates: Sequence[Estimate], tried: Sequence[Choice]
) -> Iterator[Estimate]:
    """In turns: the best estimate left, and the best estimate left among those that resemble the best one found."""
    left = list(estimates)
    while left:
        yield left.pop(0)
        best = min(tried, key=lambda choice: merit(config, choice)).candidate
        factor = rollout_factor(estimator, tried)
        left.sort(key=lambda each: _guess(config, each.corrected(factor)))
        near = next((each for each in left if differences(best, each.candidate) == 1), None)
        if near is not None:
            left.remove(near)
            yield near


def rollout_factor(estimator: Estimator, tried: Sequence[Choice]) -> float:
    """How much longer rollouts take in simulation than by estimate, of those whose trainer had to wait."""
    factors = []
    for choice in tried:
        estimate, outcome = choice.estimate, choice.outcome
        step = estimator.tokens_per_step / outcome.tokens_per_second
        chain = (step - estimate.recompute_seconds) * (1 + choice.candidate.alpha)
        rollout = chain - estimate.trainer_seconds - estimate.weights_seconds
        if outcome.pool("train").idle_share > WAITING and rollout > 0:
            factors.append(rollout / estimate.rollout_seconds)
    return median(factors) if factors else 1.0


def differences(one: Candidate, other: Candidate) -> int:
    """In how many decisions two candidates differ."""
    same_kinds = [e.device for e in one.rollout] == [e.device for e in other.rollout]
    return sum(
        (
            one.train_device != other.train_device,
            one.train_count != other.train_count,
            not same_kinds,
            same_kinds and [e.tensor_parallel for e in one.rollout] != [e.tensor_parallel for e in other.rollout],
            one.alpha != other.alpha,
            one.redundancy != other.redundancy,
        )
    )
