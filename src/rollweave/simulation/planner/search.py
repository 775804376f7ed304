"""The search: estimate all candidates, simulate the best few, then look around the best of those.

result = plan(config)
result.choices[0].candidate, result.choices[0].outcome.step_seconds
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rollweave.config.planning import PlanConfig
from rollweave.simulation.outcome import SimulationResult
from rollweave.simulation.planner.candidates import Candidate, candidates
from rollweave.simulation.planner.estimate import Estimate, Estimator
from rollweave.simulation.simulate import simulate

STEPS, WARMUP = 4, 1
"""Of a simulation; fewer steps if they have very many turns."""
TURNS = 90_000
"""Simulated turns that a search may spend: ten to twenty seconds."""
FEWEST, MOST = 3, 24
"""Candidates to simulate, whatever they cost."""
WAITING = 0.2
"""Idle share of a trainer that waits for data."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate that was simulated."""

    candidate: Candidate
    estimate: Estimate
    outcome: SimulationResult
    dollars_per_hour: float

    @property
    def dollars_per_step(self) -> float:
        return self.dollars_per_hour * self.outcome.step_seconds / 3600


@dataclass(frozen=True, slots=True)
class Recommendation:
    choices: list[Choice]
    """The best first."""
    considered: int
    estimator: Estimator


def plan(config: PlanConfig) -> Recommendation:
    estimator = Estimator(config)
    estimates = sorted((estimator(each) for each in candidates(config)), key=lambda e: _guess(config, e))
    turns = estimator.batch * estimator.mean_turns
    steps = int(min(STEPS, max(WARMUP + 1, TURNS / (turns * 2 * FEWEST))))
    tries = int(min(MOST, max(FEWEST, TURNS / (turns * steps))))
    choices: list[Choice] = []
    for estimate in _promising(config, estimator, estimates, choices):
        choices.append(assess(config, estimate, steps))
        if len(choices) >= tries:
            break
    return Recommendation(sorted(choices, key=lambda c: merit(config, c)), len(estimates), estimator)


def assess(config: PlanConfig, estimate: Estimate, steps: int = STEPS) -> Choice:
    """Simulate it."""
    candidate = estimate.candidate
    outcome = simulate(candidate.scenario(config, steps, WARMUP))
    return Choice(candidate, estimate, outcome, candidate.price(config))


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
        rollout = step if choice.candidate.alpha else step - estimate.trainer_seconds
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
