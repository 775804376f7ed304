"""Measures the steps of the real engine and the real trainer, each alone.

Engine steps are measured for several batch sizes, cache sizes and lengths of context. Requests come in turns of the
lengths that the job's own episodes have, because many short pieces of context cost more than one long piece of as many
tokens. Train steps are measured on the job's own trajectories: what a step costs by itself, and what each token adds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, groupby
from statistics import median
from typing import TYPE_CHECKING

from rollweave.config.hardware import EngineTimes, TrainerTimes
from rollweave.engines.protocol import Request, Sampling
from rollweave.trajectory import Batch, Group, Trajectory, token_ids

if TYPE_CHECKING:
    from rollweave.engines.torch.engine import TorchEngine
    from rollweave.training.trainer import TorchTrainer


REPEATS = 9
"""Number of steps of each kind. The median counts, because the fastest step is faster than a usual one."""

PAUSE = 0.05
"""Seconds of a pause that is long enough for caches to go cold and cores to sleep."""

TOKEN = 5
"""An arbitrary token: the time of a step does not depend on it."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths in the job's episodes, in tokens."""

    prompt: int
    observation: int


def measure_engine(engine: TorchEngine, slots: int, lengths: Lengths) -> EngineTimes:
    """Measure the times of an engine on an otherwise idle machine."""
    probe = _Probe(engine)
    short, long = min(lengths.prompt, engine.max_context // 4), engine.max_context // 2
    batches = [batch for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256) if batch < slots] + [slots]
    probe.decode(batches[-1], short)  # the first steps pay for allocations
    decode = [probe.decode(batch, short) for batch in batches]
    cached = max(0.0, probe.decode(slots, long) - decode[-1]) / (slots * max(1, long - short))
    seconds = [max(1e-6, each - cached * batch * short) for batch, each in zip(batches, decode, strict=True)]
    prefill = probe.prefill(slots, lengths, decode[-1])
    wake = round(max(0.0, probe.turn(lengths, PAUSE) - probe.turn(lengths, 0.0)), 7)
    return EngineTimes(
        batches=tuple(batches), seconds=_rising(seconds), cached_token=cached, prefill_token=prefill, wake=wake
    )


def _rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """Make the times rise with the batch size: where a smaller batch took longer, something else disturbed it."""
    return tuple(round(min(seconds[place:]), 7) for place in range(len(seconds)))


class _Probe:
    """Sends requests to an engine and times its steps."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine
        self._numbers = count()

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a step that decodes one token for each of `batch` requests with about `context` tokens."""
        steps_of_context = 1 + batch * context // self._engine.prefill_tokens
        names = self._ask(batch, context, steps_of_context + REPEATS + 1)
        for _ in range(steps_of_context):
            self._engine.step()
        seconds = [self._step() for _ in range(REPEATS)]
        self._end(names)
        return median(seconds)

    def prefill(self, batch: int, lengths: Lengths, decode: float) -> float:
        """Seconds per token of context, without the last token of each request, which a decode step computes too."""
        seconds = []
        names = self._ask(batch, lengths.prompt, 1)
        self._drain()
        for turn in range(1, REPEATS):
            context = lengths.prompt + turn * (lengths.observation + 1)
            if context + 2 > self._engine.max_context:
                break
            self._ask(batch, context, 1, names)
            before = self._engine.stats().prefilled_tokens
            took = self._drain()
            new = self._engine.stats().prefilled_tokens - before - batch
            seconds.append(max(0.0, took - decode) / max(1, new))
        self._end(names)
        return round(median(seconds), 8) if seconds else 0.0

    def turn(self, lengths: Lengths, pause: float) -> float:
        """Seconds of a single request with a short answer, after a pause."""
        seconds = []
        for _ in range(REPEATS):
            names = self._ask(1, lengths.prompt, 1)
            self._drain()
            self._ask(1, min(lengths.prompt + lengths.observation, self._engine.max_context - 3), 2, names)
            time.sleep(pause)
            seconds.append(self._drain())
            self._end(names)
        return median(seconds)

    def _ask(self, batch: int, context: int, answer: int, names: Sequence[str] = ()) -> Sequence[str]:
        names = names or [f"probe-{next(self._numbers)}" for _ in range(batch)]
        tokens, sampling = token_ids([TOKEN] * context), Sampling(max_tokens=answer)
        for name in names:
            self._engine.add(Request(f"{name}#{context}", name, tokens, next(self._numbers), sampling))
        return names

    def _step(self) -> float:
        began = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - began

    def _drain(self) -> float:
        began = time.perf_counter()
        while self._engine.has_work:
            self._engine.step()
        return time.perf_counter() - began

    def _end(self, names: Sequence[str]) -> None:
        self._drain()
        for name in names:
            self._engine.release(name)


TRAIN_REPEATS = 3


def measure_trainer(trainer: TorchTrainer, trajectories: Sequence[Trajectory], groups_per_step: int) -> TrainerTimes:
    """Measure the times of a trainer on an otherwise idle machine, with a small batch and a whole one."""
    groups = grouped(trajectories)
    whole, small = groups[:groups_per_step], groups[: max(1, groups_per_step // 4)]
    trainer.train_step(Batch(0, small))  # the first one pays for allocations
    return line(_tokens(small), _seconds(trainer, small), _tokens(whole), _seconds(trainer, whole))


def _tokens(groups: list[Group]) -> int:
    return sum(trajectory.length for group in groups for trajectory in group.members)


def line(tokens: int, seconds: float, more_tokens: int, more_seconds: float) -> TrainerTimes:
    """Fit a line through two measurements; the fixed part is left out if it would be negative."""
    if more_tokens == tokens:
        return TrainerTimes(step=0.0, token=seconds / tokens)
    slope = max(0.0, (more_seconds - seconds) / (more_tokens - tokens))
    fixed = more_seconds - slope * more_tokens
    if fixed < 0:
        return TrainerTimes(step=0.0, token=more_seconds / more_tokens)
    return TrainerTimes(step=fixed, token=slope)


def grouped(trajectories: Sequence[Trajectory]) -> list[Group]:
    """Put the trajectories back into their groups."""
    ordered = sorted(trajectories, key=lambda t: (t.group, t.member))
    groups = {number: list(members) for number, members in groupby(ordered, key=lambda t: t.group)}
    return [Group(number, members[0].task, members) for number, members in groups.items()]


def _seconds(trainer: TorchTrainer, groups: list[Group]) -> float:
    seconds = []
    for _ in range(TRAIN_REPEATS):
        began = time.perf_counter()
        trainer.train_step(Batch(trainer.version, groups))
        seconds.append(time.perf_counter() - began)
    return min(seconds)  # the other runs were disturbed by something else on the machine
