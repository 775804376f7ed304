"""What `rollweave profile` measured of one model on one machine; beside the peaks of a device in the catalogue.

A roofline says what a device could do. These are times of the real engine, trainer, weights and hosts: where a device
has them, simulations use them instead.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import Section

Seconds = Annotated[float, Field(ge=0.0)]


class EngineTimes(Section):
    """One engine step: `seconds` by batch size, and what the context costs on top."""

    batches: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    seconds: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """Of a step that decodes one token for each of so many requests with nothing in their caches."""
    cached_token: Seconds = 0.0
    """More for each token in the caches of the batch."""
    prefill_token: Seconds = 0.0
    """More for each token of context that the step computes."""
    wake: Seconds = 0.0
    """More for the first step after a pause."""

    @model_validator(mode="after")
    def _one_each(self) -> EngineTimes:
        if len(self.batches) != len(self.seconds) or list(self.batches) != sorted(set(self.batches)):
            raise ValueError("batches must rise, and seconds have one entry for each of them")
        return self


class TrainerTimes(Section):
    """One train step."""

    step: Seconds
    """Whatever the batch."""
    token: Seconds
    """For each token of the batch's trajectories."""


class WeightTimes(Section):
    """One new version of the weights."""

    publish: Seconds
    """The trainer pushes it; training cannot go on meanwhile."""
    prepare: Seconds
    """An engine stages it, beside its steps."""
    commit: Seconds
    """The engines stand still."""


class HostTimes(Section):
    """What passing turns through hosts and links costs. Those that come up together travel together."""

    message: Seconds = 0.0
    """There and back, however many turns are in it."""
    turn: Seconds = 0.0
    """More for each turn."""


class Contention(Section):
    """How much longer work takes while generation and training share the machine's cores; 1: not at all."""

    engine: PositiveFloat = 1.0
    trainer: PositiveFloat = 1.0
    host: PositiveFloat = 1.0


class Measured(Section):
    model: str
    """These times are of this model; another one on the same device is modelled by roofline."""
    threads: PositiveInt = 1
    """Cores that one such device is: engine and trainer were measured with so many threads each."""
    engine: EngineTimes
    trainer: TrainerTimes
    weights: WeightTimes
    host: HostTimes = HostTimes()
    contention: Contention = Contention()


class Observed(Section):
    """What a sample of real steps took, each: that which a simulation of it must take as well."""

    step_seconds: Seconds
    get_batch_seconds: Seconds
    train_seconds: Seconds
    engine_busy_seconds: Seconds
