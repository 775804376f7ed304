"""A quick guess of a candidate's step, from a sample of the workload's episodes and the hardware's cost models.

No event is simulated: engines are taken in their steady state. With n trajectories in flight per engine, of which b
generate while the others wait for their environments, an episode takes `gen(b)` seconds of generation, and

    b = n * gen(b) / (gen(b) + environment)          trajectories per second = b / gen(b)

A step takes as long as the slower of rollout and training when they overlap, and both when they do not. The longest
episode bounds the rollout from below. Good enough to tell hundreds of candidates from the best few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from rollweave.config.cluster import Pool
from rollweave.config.hardware import Measured
from rollweave.config.planning import PlanConfig
from rollweave.simulation.costs.measured import MeasuredEngine, MeasuredTraining
from rollweave.simulation.costs.roofline import EngineCosts, pairs
from rollweave.simulation.costs.training import TrainingCosts, weight_path
from rollweave.simulation.planner.candidates import Candidate, Engines
from rollweave.simulation.workloads.episode import DrawnWorkload
from rollweave.simulation.workloads.presets import resolve

GROUPS, MEMBERS = 64, 4
"""Of the sample."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One episode, or the mean of many."""

    answers: float
    """Tokens sampled."""
    context: float
    """Tokens computed as context, each once."""
    pairs: float
    held: float
    """Tokens in its cache while it generates, on average."""
    waiting: float
    """Seconds in its environment."""
    length: float


@dataclass(frozen=True, slots=True)
class Estimate:
    candidate: Candidate
    step_seconds: float
    rollout_seconds: float
    trainer_seconds: float
    """Training, and what it waits for until the next step may begin."""
    dollars_per_hour: float

    @property
    def dollars_per_step(self) -> float:
        return self.dollars_per_hour * self.step_seconds / 3600

    def corrected(self, factor: float) -> Estimate:
        """As if the rollout took this many times as long."""
        rollout, trainer = self.rollout_seconds * factor, self.trainer_seconds
        return replace(self, rollout_seconds=rollout, step_seconds=_step(self.candidate, rollout, trainer))


class Estimator:
    def __init__(self, plan: PlanConfig) -> None:
        self._plan = plan
        self._rollout = plan.rollout
        self._constants = plan.constants
        self._path = weight_path(plan.spec(), plan.constants)
        self.batch = plan.rollout.groups_per_step * plan.rollout.group_size
        self._shapes, self.mean_turns = _sample(plan)
        self._mean = _mean(self._shapes)
        self._costs: dict[tuple[str, int], EngineCosts] = {}
        self._training: dict[tuple[str, int], float] = {}
        self._rates: dict[tuple[str, int, float], tuple[float, float]] = {}

    def __call__(self, candidate: Candidate) -> Estimate:
        rollout = self._rollout_seconds(candidate)
        trainer = self._train_seconds(candidate.train_device, candidate.train_count) + self._path.snapshot
        if not candidate.alpha:  # else weights travel beside the next step
            trainer += self._path.push + self._path.pull
        price = candidate.price(self._plan)
        return Estimate(candidate, _step(candidate, rollout, trainer), rollout, trainer, price)

    @property
    def tokens_per_step(self) -> float:
        """Of a batch that is not chosen by who finished first."""
        return self.batch * self._mean.length

    def _rollout_seconds(self, candidate: Candidate) -> float:
        engines = sum(each.count // each.tensor_parallel for each in candidate.rollout)
        more = 1.0 + candidate.redundancy
        in_flight = self._rollout.environments or self.batch * (1 + candidate.alpha)
        each = in_flight * more / engines
        rates, tails = [], []
        for pool in candidate.rollout:
            rate, seconds_per_token = self._rate(pool, each)
            rates.append(rate * (pool.count // pool.tensor_parallel))
            tails.append(self._tail(seconds_per_token, candidate.redundancy))
        work = self.batch / sum(rates)
        if candidate.alpha:
            return max(work + self._recompute(candidate.rollout, each), max(tails) / (1 + candidate.alpha))
        return max(work * more, max(tails))

    def _rate(self, pool: Engines, in_flight: float) -> tuple[float, float]:
        """Trajectories per second of one engine with so many in flight, and its seconds per token then."""
        key = pool.device, pool.tensor_parallel, in_flight
        if key not in self._rates:
            self._rates[key] = self._steady(self.costs(pool), in_flight)
        return self._rates[key]

    def _steady(self, costs: EngineCosts, in_flight: float) -> tuple[float, float]:
        mean = self._mean
        most = max(1.0, min(costs.slots, costs.kv_tokens / mean.held))
        batch = min(in_flight, most)
        for _ in range(20):
            token = costs.fixed(max(1, round(batch))) + costs.per_cached_token * batch * mean.held
            prefill = costs.prefill(max(1, round(mean.context)), mean.pairs, max(1, round(batch)))
            generating = mean.answers * token + batch * prefill
            batch = (batch + min(most, in_flight * generating / (generating + mean.waiting))) / 2
        return batch / generating, token

    def _tail(self, seconds_per_token: float, redundancy: float) -> float:
        """The slowest group that a step waits for, as slow as its slowest member; redundant ones may be slower."""
        times = [shape.waiting + shape.answers * seconds_per_token for shape in self._shapes]
        size = min(self._rollout.group_size, len(times))
        groups = sorted(max(times[first : first + size]) for first in range(0, len(times), size))
        return groups[ceil(len(groups) / (1.0 + redundancy)) - 1]

    def _recompute(self, pools: Sequence[Engines], in_flight: float) -> float:
        """After an update every cache in use is computed again."""
        held = self._mean.held
        return fmean(self.costs(pool).recompute(round(in_flight * held), in_flight * held * held / 2) for pool in pools)

    def _train_seconds(self, device: str, count: int) -> float:
        key = device, count
        if key not in self._training:
            pools = [Pool(name="train", device=device, count=count, role="train")]
            cluster = self._plan.cluster([*pools, Pool(name="rollout", device=device, count=1, role="rollout")])
            costs = TrainingCosts(self._plan.spec(), cluster, pools, self._constants)
            if found := self._measured(device):
                costs = MeasuredTraining(found.trainer, count)
            overhead = costs.of_lengths([])
            sampled = costs.of_lengths([round(shape.length) for shape in self._shapes]) - overhead
            self._training[key] = sampled * self.batch / len(self._shapes) + overhead
        return self._training[key]

    def costs(self, pool: Engines) -> EngineCosts:
        key = pool.device, pool.tensor_parallel
        if key not in self._costs:
            device = self._plan.device(pool.device)
            costs = EngineCosts(self._plan.spec(), device, self._constants, pool.tensor_parallel)
            found = self._measured(pool.device)
            self._costs[key] = MeasuredEngine(costs, found.engine) if found else costs
        return self._costs[key]

    def _measured(self, device: str) -> Measured | None:
        found = self._plan.device(device).measured
        return found if found is not None and found.model == self._plan.model else None

    def decode_share(self, pool: Engines) -> float:
        """Of an engine's time that is spent on answers, the rest on context: what a device is chosen for."""
        costs, mean = self.costs(pool), self._mean
        batch = 32
        decode = mean.answers * (costs.fixed(batch) + costs.per_cached_token * batch * mean.held) / batch
        prefill = costs.prefill(max(1, round(mean.context)), mean.pairs, batch)
        return decode / (decode + prefill)


def _step(candidate: Candidate, rollout: float, trainer: float) -> float:
    return max(rollout, trainer) if candidate.alpha else rollout + trainer


def _sample(plan: PlanConfig) -> tuple[list[Shape], float]:
    workload = DrawnWorkload([resolve(task) for task in plan.workload.tasks], plan.seed)
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
    held = computed = 0.0
    context = 0
    for observation, answer in zip(observations, answers, strict=True):
        context += observation
        computed += pairs(observation, context)
        held += answer * (context + answer / 2)
        context += answer
    sampled = sum(answers)
    return Shape(sampled, sum(observations), computed, held / sampled, waiting, context)


def _mean(shapes: Sequence[Shape]) -> Shape:
    return Shape(*(fmean(getattr(shape, name) for shape in shapes) for name in Shape.__slots__))
