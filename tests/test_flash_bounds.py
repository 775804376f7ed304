"""The closed-form bounds of ROLL Flash, against the production scheduler on the virtual clock.

The paper's setting: K single-slot workers, N samples to a step, weights that move in no time, nothing thrown away
(`wait`). A sample is a group of one member that keeps a slot busy for a drawn time; mu is the mean and L the longest
of all samples the run started. A share beta of the workers trains: a train step takes E N mu_train / (beta K), and
(1 - beta) K slots generate.

    synchronous    T <= (N / K) (mu + E mu_train) + L
    asynchronous   T <= max( (N mu + K L / (alpha + 1)) / ((1 - beta) K),  E N mu_train / (beta K) )

**T is the mean time of a step**: the moment the last batch is taken, divided by the steps until then. Why it holds
for our loop: let t(n) be when batch n is taken. The samples of batch n were admitted together, when batch n - Q/N was
taken, with Q samples in line. From then on no slot stands idle before the last of them has begun, so they have all
ended after at most (the work in line) / slots + L. Either they are waited for, and Q/N steps cost that much; or the
trainer is, and one step costs a train step. Chaining such pieces back to the start gives the bound, warm-up included,
because at the start all that wait in line begin at once.

**Which alpha.** The paper takes a batch first and updates the engines after it, and keeps Q = (alpha + 1) N samples in
line at all times, also while the trainer works. That is our `sync_point: after_batch` with pipeline.alpha = alpha + 1:
we count staleness against the version being trained, the paper against the one the engines have when the batch is
taken, which is one less.

**Our own order** (update, then take the batch) at pipeline.alpha = alpha has Q = (alpha + 1) N right after an update
and alpha N while the trainer works. A sample that is waited for has to be trained as well before the cycle of
alpha + 1 steps closes, so a share 1 / (alpha + 1) of a train step is added to the first term. That is no weakness of
the loop: a sample from version n can be in no batch after n + alpha, whatever schedules it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

import pytest
from tests.world.durations import NO_TIME, Duration, constant, lognormal
from tests.world.environment import EnvironmentModel
from tests.world.world import SimulatedRun, World

from rollweave.seeds import generator
from virtual_worlds import make_job, rollart, run

SETTINGS = 200


@dataclass
class Samples:
    """Draws how long samples take, and remembers."""

    draw: Duration
    drawn: list[float] = field(default_factory=list)

    def __call__(self, rng: Random) -> float:
        self.drawn.append(self.draw(rng))
        return self.drawn[-1]

    @property
    def mean(self) -> float:
        return fmean(self.drawn)

    @property
    def longest(self) -> float:
        return max(self.drawn)


def play(
    pipeline: dict[str, object], samples: Samples, slots: int, groups: int, train: float, steps: int, seed: int
) -> SimulatedRun:
    """Every episode is one token, drawn at once, and then a step that takes the sample's time."""
    world = World(
        token_seconds=NO_TIME,
        answer_tokens=lambda rng: 1,
        train_seconds=constant(train),
        environment=EnvironmentModel(turns=lambda rng: 1, step_seconds=samples),
    )
    patience = {"env_step": 1e9, "get_batch": 1e9}
    job = make_job(pipeline, seed, steps, groups_per_step=groups, group_size=1, environments=slots, deadlines=patience)
    return run(job, world)


def step_seconds(result: SimulatedRun, skip: int = 0) -> float:
    taken = [0.0, *(event.time for event in result.recorder.named("batch.ready"))]
    return (taken[-1] - taken[skip]) / (len(taken) - 1 - skip)


def two_lengths(share_long: float, long: float) -> Duration:
    return lambda rng: long if rng.random() < share_long else 1.0


@dataclass(frozen=True)
class Setting:
    """One of many, drawn by number."""

    number: int
    workers: int
    groups: int
    alpha: int
    training_workers: int
    train_work: float
    """E N mu_train: of one step, in worker-seconds."""
    samples: Callable[[], Samples]

    @property
    def slots(self) -> int:
        return self.workers - self.training_workers


def setting(number: int) -> Setting:
    rng = generator(number, "flash")
    workers = rng.randint(2, 12)
    groups = rng.randint(1, 12)
    shapes = [
        lognormal(1.0, rng.uniform(0.1, 1.5)),
        two_lengths(rng.uniform(0.02, 0.3), rng.uniform(2, 20)),
        constant(1),
    ]
    draw = rng.choice(shapes)
    return Setting(
        number,
        workers,
        groups,
        alpha=rng.choice([0, 1, 1, 2, 3, 5]),
        training_workers=rng.randint(1, workers - 1),
        train_work=groups * rng.choice([0.0, 0.1, 0.5, 1.0, 2.0]),
        samples=lambda: Samples(draw),
    )


@pytest.mark.parametrize("block", range(4))
def test_synchronous_steps_take_no_longer_than_the_bound(block: int) -> None:
    for number in range(block, SETTINGS, 4):
        s = setting(number)
        samples, train = s.samples(), s.train_work / s.workers
        result = play({"type": "sync+"}, samples, s.workers, s.groups, train, steps=8, seed=number)
        # The last batch is taken before its train step.
        bound = s.groups * samples.mean / s.workers + samples.longest + train
        assert step_seconds(result) <= bound * (1 + 1e-9), s


@pytest.mark.parametrize("block", range(4))
def test_asynchronous_steps_take_no_longer_than_the_bound(block: int) -> None:
    for number in range(block, SETTINGS, 4):
        s = setting(number)
        samples, train = s.samples(), s.train_work / s.training_workers
        order = rollart(s.alpha + 1, sync_point="after_batch")
        result = play(order, samples, s.slots, s.groups, train, steps=12, seed=number)
        tail = s.workers * samples.longest / (s.alpha + 1)
        bound = max((s.groups * samples.mean + tail) / s.slots, train)
        # From the first batch on: with `wait` that one is of the groups that began first, not of those that end first.
        assert step_seconds(result, skip=1) <= bound * (1 + 1e-9), s


@pytest.mark.parametrize("block", range(4))
def test_our_own_order_adds_a_share_of_one_train_step(block: int) -> None:
    for number in range(block, SETTINGS, 4):
        s = setting(number)
        samples, train = s.samples(), s.train_work / s.training_workers
        result = play(rollart(s.alpha), samples, s.slots, s.groups, train, steps=12, seed=number)
        tail = s.workers * samples.longest / (s.alpha + 1)
        bound = max((s.groups * samples.mean + tail) / s.slots + train / (s.alpha + 1), train)
        assert step_seconds(result, skip=1) <= bound * (1 + 1e-9), s


@pytest.mark.parametrize("slots", [4, 16])
def test_with_ever_more_samples_in_line_a_sample_costs_its_mean(slots: int) -> None:
    samples = Samples(two_lengths(0.05, 20.0))
    result = play(rollart(32), samples, slots, groups=slots, train=0.0, steps=120, seed=1)
    assert step_seconds(result, skip=40) / slots == pytest.approx(samples.mean / slots, rel=0.15)


def test_with_one_sample_for_each_worker_the_gain_is_the_longest_over_the_mean() -> None:
    """(mu + L) / mu in the limit: waiting for the longest of a step is what asynchrony saves.

    Every fourteenth sample is a long one, so that each step has some and the mean is no matter of luck.
    """
    workers = 56

    def every_fourteenth() -> Samples:
        turn = itertools.cycle([60.0, *([1.0] * 13)])
        return Samples(lambda rng: next(turn))

    waiting, going_on = every_fourteenth(), every_fourteenth()
    synchronous = play({"type": "sync+"}, waiting, workers, workers, train=0.0, steps=6, seed=2)
    asynchronous = play(rollart(16), going_on, workers, workers, train=0.0, steps=45, seed=2)
    gain = step_seconds(synchronous) / step_seconds(asynchronous, skip=20)
    assert gain == pytest.approx((waiting.mean + waiting.longest) / waiting.mean, rel=0.15)
