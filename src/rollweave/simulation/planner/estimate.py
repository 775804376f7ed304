"""A quick guess of a candidate's step, from a sample of the workload's episodes and the hardware's cost models.

No event is simulated: engines are taken in their steady state. With n trajectories in flight per engine, of which b
generate while the others wait for their environments or for room in the batch, an engine ends `rate(n)` trajectories
per second, and an episode takes n / rate(n) seconds. Caches that do not fit are computed again, turn after turn.

The groups of a batch are admitted when the batch 1 + alpha steps before it is trained and its weights have arrived.
So there are 1 + alpha chains, and a turn of each is

    C = longest episode + training + weights                         step = C / (1 + alpha)

A slot is in use for the share (mean episode) / C of the time, which gives n, on which the episodes depend: the two are
solved together. A step is also no shorter than its training, and no shorter than one update of the weights. Good
enough to tell hundreds of candidates from the best few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from rollweave.config.planning import PlanConfig
from rollweave.simulation.costs.measured import MeasuredEngine, MeasuredTraining, measured_on
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.costs.training import TrainingCosts, weight_path
from rollweave.simulation.planner.candidates import Candidate, Engines
from rollweave.simulation.simulate import make_workload

GROUPS, MEMBERS = 64, 4
"""Of the sample."""

ROUNDS = 20
"""Of a fixed point, each half of the way: far more than the guess is worth."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One episode, or the mean of many."""

    answers: float
    """Tokens sampled."""
    context: float
    """Tokens computed as context, each once."""
    pairs: float
    context_again: float
    """Tokens computed as context if no cache survives from one turn to the next."""
    pairs_again: float
    held: float
    """Tokens in its cache while it generates, on average."""
    waiting: float
    """Seconds in its environment."""
    length: float


@dataclass(frozen=True, slots=True)
class Estimate:
    candidate: Candidate
    rollout_seconds: float
    """The longest episode of a batch, under the load that it meets."""
    trainer_seconds: float
    """Training, and handing the weights over."""
    weights_seconds: float
    """One update, after the handing over, until the engines have it."""
    recompute_seconds: float
    """What engines do once more after an update, per step."""
    dollars_per_hour: float

    @property
    def step_seconds(self) -> float:
        chain = self.rollout_seconds + self.trainer_seconds + self.weights_seconds
        if not self.candidate.alpha:
            return chain
        return max(
            chain / (1 + self.candidate.alpha) + self.recompute_seconds, self.trainer_seconds, self.weights_seconds
        )

    @property
    def dollars_per_step(self) -> float:
        return self.dollars_per_hour * self.step_seconds / 3600

    def corrected(self, factor: float) -> Estimate:
        """As if the rollout took this many times as long."""
        return replace(self, rollout_seconds=self.rollout_seconds * factor)


class Estimator:
    def __init__(self, plan: PlanConfig) -> None:
        self._plan = plan
        self._rollout = plan.rollout
        self._path = weight_path(plan.spec(), plan.constants)
        self.batch = plan.rollout.groups_per_step * plan.rollout.group_size
        self._shapes, self.mean_turns = _sample(plan)
        self._mean = _mean(self._shapes)
        self._costs: dict[tuple[str, int], EngineCosts] = {}
        self._training: dict[tuple[str, int], float] = {}
        self._rates: dict[tuple[str, int, float], tuple[float, float]] = {}

    def __call__(self, candidate: Candidate) -> Estimate:
        trainer = self._train_seconds(candidate.train_device, candidate.train_count) + self._path.snapshot
        weights = self._path.push + self._path.pull
        rollout, each = self._longest(candidate, trainer + weights)
        recompute = self._recompute(candidate.rollout, each) if candidate.alpha else 0.0
        return Estimate(candidate, rollout, trainer, weights, recompute, candidate.price(self._plan))

    @property
    def tokens_per_step(self) -> float:
        """Of a batch that is not chosen by which episodes finished first."""
        return self.batch * self._mean.length

    def _longest(self, candidate: Candidate, between: float) -> tuple[float, float]:
        """The longest episode of a batch, and how many are in flight per engine; `between`: the rest of a chain."""
        engines = sum(each.count // each.tensor_parallel for each in candidate.rollout)
        most = self.batch * (1 + candidate.alpha)
        slots = min(most, self._rollout.environments or most) / engines
        redundancy = 0.0 if candidate.alpha else candidate.redundancy  # room is made by alpha: nothing races
        each = slots
        for _ in range(ROUNDS):
            rate, token = self._mixed(candidate.rollout, each)
            mean = each / rate
            longest = max(self._tail(token, redundancy), mean)
            busy = mean / (longest + between if candidate.alpha else longest)
            each = (each + slots * busy) / 2
        return longest, each

    def _mixed(self, pools: Sequence[Engines], each: float) -> tuple[float, float]:
        """Trajectories per second of an engine, and seconds per sampled token, averaged over all engines."""
        counts = [pool.count // pool.tensor_parallel for pool in pools]
        found = [self._rate(pool, each) for pool in pools]
        rate = sum(count * rate for count, (rate, _) in zip(counts, found, strict=True)) / sum(counts)
        return rate, max(token for _, token in found)

    def _rate(self, pool: Engines, in_flight: float) -> tuple[float, float]:
        """Trajectories per second of one engine with so many in flight, and its seconds per token then."""
        key = pool.device, pool.tensor_parallel, round(in_flight, 2)
        if key not in self._rates:
            self._rates[key] = self._steady(self.costs(pool), in_flight)
        return self._rates[key]

    def _steady(self, costs: EngineCosts, in_flight: float) -> tuple[float, float]:
        mean = self._mean
        most = max(1.0, min(costs.slots, costs.kv_tokens / mean.held))
        batch = min(in_flight, most)
        for _ in range(ROUNDS):
            lost = self._lost(costs, in_flight, batch)
            context = mean.context + lost * (mean.context_again - mean.context)
            pairs_computed = mean.pairs + lost * (mean.pairs_again - mean.pairs)
            token = costs.fixed(max(1, round(batch))) + costs.per_cached_token * batch * mean.held
            prefill = costs.prefill(max(1, round(context)), pairs_computed, max(1, round(batch)))
            generating = mean.answers * token + batch * prefill
            batch = (batch + min(most, in_flight * generating / (generating + mean.waiting))) / 2
        rate = batch / generating
        return rate, max(generating, in_flight / rate - mean.waiting) / mean.answers

    def _lost(self, costs: EngineCosts, in_flight: float, batch: float) -> float:
        """The share of caches between two turns for which there is no room beside the batch."""
        idle = (in_flight - batch) * self._mean.held
        too_many = in_flight * self._mean.held - costs.kv_tokens
        return min(1.0, max(0.0, too_many / idle)) if idle > 0 else 0.0

    def _tail(self, seconds_per_token: float, redundancy: float) -> float:
        """The slowest group that a step waits for, as slow as its slowest member; redundant ones may be slower."""
        times = [shape.waiting + shape.answers * seconds_per_token for shape in self._shapes]
        size = min(self._rollout.group_size, len(times))
        groups = sorted(max(times[first : first + size]) for first in range(0, len(times), size))
        return groups[ceil(len(groups) / (1.0 + redundancy)) - 1]

    def _recompute(self, pools: Sequence[Engines], in_flight: float) -> float:
        """After an update every cache in use is computed again."""
        held = self._mean.held

        def seconds(costs: EngineCosts) -> float:
            many = min(in_flight, costs.kv_tokens / held)
            return costs.recompute(round(many * held), many * held * held / 2)

        return fmean(seconds(self.costs(pool)) for pool in pools)

    def _train_seconds(self, device: str, count: int) -> float:
        key = device, count
        if key not in self._training:
            kind = self._plan.device(device)
            found = measured_on(kind, self._plan.model)
            by_roofline = TrainingCosts(self._plan.spec(), [(kind, count)], self._plan.constants)
            costs = MeasuredTraining(found.trainer, count) if found else by_roofline
            overhead = costs.of_lengths([])
            sampled = costs.of_lengths([round(shape.length) for shape in self._shapes]) - overhead
            self._training[key] = sampled * self.batch / len(self._shapes) + overhead
        return self._training[key]

    def costs(self, pool: Engines) -> EngineCosts:
        key = pool.device, pool.tensor_parallel
        if key not in self._costs:
            device = self._plan.device(pool.device)
            costs = EngineCosts(self._plan.spec(), device, self._plan.constants, pool.tensor_parallel)
            found = measured_on(device, self._plan.model)
            self._costs[key] = MeasuredEngine(costs, found.engine) if found else costs
        return self._costs[key]

    def decode_share(self, pool: Engines) -> float:
        """Of an engine's time that is spent on answers, the rest on context: what a device is chosen for."""
        costs, mean = self.costs(pool), self._mean
        batch = 32
        decode = mean.answers * (costs.fixed(batch) + costs.per_cached_token * batch * mean.held) / batch
        prefill = costs.prefill(max(1, round(mean.context)), mean.pairs, batch)
        return decode / (decode + prefill)


def _sample(plan: PlanConfig) -> tuple[list[Shape], float]:
    workload = make_workload(plan.workload, plan.seed)
    shapes, turns = [], []
    for number in range(GROUPS):
        task = workload.source.task(number)
        for _ in range(MEMBERS):
            episode = workload.episode(task)
            count = min(len(episode.answers), plan.rollout.max_turns)
            turns.append(count)
            shapes.append(
                _shape(
                    episode.observations[:count],
                    [min(answer, plan.rollout.sampling.max_tokens) for answer in episode.answers[:count]],
                    min(episode.reset_seconds, 600.0) + sum(min(each, 600.0) for each in episode.step_seconds[:count]),
                )
            )
    return shapes, fmean(turns)


def _shape(observations: Sequence[int], answers: Sequence[int], waiting: float) -> Shape:
    held = computed = again = computed_again = 0.0
    context = 0
    for observation, answer in zip(observations, answers, strict=True):
        context += observation
        computed += pairs(observation, context)
        again += context
        computed_again += pairs(context, context)
        held += answer * (context + answer / 2)
        context += answer
    sampled = max(1, sum(answers))
    return Shape(sampled, sum(observations), computed, again, computed_again, held / sampled, waiting, context)


def _mean(shapes: Sequence[Shape]) -> Shape:
    return Shape(*(fmean(getattr(shape, name) for shape in shapes) for name in Shape.__slots__))
