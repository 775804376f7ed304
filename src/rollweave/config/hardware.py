"""Hardware as simulations see it: device classes with their peaks and prices, measured times, and constants.

A cluster file names a device class of the catalogue (`device: H20`) or describes one of its own. The speeds of GPUs are
peaks, from data sheets or from the tables of the papers; those of the CPU class were measured on one machine. How
much of a peak real software reaches is in `Constants`, and is the same for every class unless the class gives an
efficiency of its own.

A roofline says what a device could do. `rollweave profile` measures what the real engine, trainer, weights and hosts
take for one model on one machine (`Measured`); simulations use those times instead where a device has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import NonNegative, Section, Share
from rollweave.config.catalogue import Catalogue, NamedSection

Seconds = NonNegative
Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]


# -------------------------------------------------------------------------------------- measured times of one model


class EngineTimes(Section):
    """What one engine step takes: `seconds` for each batch size, and more for the context."""

    batches: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    seconds: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
    """For each entry of `batches`: a step that decodes one token for each of so many requests with empty caches."""
    cached_token: Seconds = 0.0
    """Added for each token in the caches of the batch."""
    prefill_token: Seconds = 0.0
    """Added for each token of context that the step computes."""
    wake: Seconds = 0.0
    """Added to the first step after a pause."""

    @model_validator(mode="after")
    def _check_lengths(self) -> EngineTimes:
        if len(self.batches) != len(self.seconds) or list(self.batches) != sorted(set(self.batches)):
            raise ValueError("batches must be in rising order, and seconds must have one entry for each of them")
        return self


class TrainerTimes(Section):
    """What one train step takes."""

    step: Seconds
    """The fixed part, the same for every batch."""
    token: Seconds
    """Added for each token of the batch's trajectories."""


class WeightTimes(Section):
    """What one new version of the weights takes."""

    publish: Seconds
    """The trainer pushes the version; it cannot train meanwhile."""
    prepare: Seconds
    """An engine stages the version while it goes on with its steps."""
    commit: Seconds
    """The engines switch to the version; they stand still meanwhile."""


class HostTimes(Section):
    """What it takes to pass turns through hosts and links. Turns that end at the same time share one message."""

    message: Seconds = 0.0
    """For the way there and back, independent of the number of turns in it."""
    turn: Seconds = 0.0
    """Added for each turn."""


class Contention(Section):
    """How many times longer work takes while generation and training share the machine's cores; 1: no longer."""

    engine: PositiveFloat = 1.0
    trainer: PositiveFloat = 1.0
    host: PositiveFloat = 1.0


class Measured(Section):
    """The times that `rollweave profile` measured for one model on one machine."""

    model: str
    """The model that was measured. Any other model on the same device is modelled by roofline."""
    threads: PositiveInt = 1
    """Number of cores that count as one device: engine and trainer were measured with so many threads each."""
    engine: EngineTimes
    trainer: TrainerTimes
    weights: WeightTimes
    host: HostTimes = HostTimes()
    contention: Contention = Contention()


class Observed(Section):
    """What one step of a real sample took on average; calibration makes a simulation take the same."""

    step_seconds: Seconds
    get_batch_seconds: Seconds
    train_seconds: Seconds
    engine_busy_seconds: Seconds


# ------------------------------------------------------------------------------------------- the catalogue of devices


class Device(NamedSection):
    """A class of devices; all numbers are per device."""

    kind: Literal["gpu", "cpu", "function"] = "gpu"
    tflops: PositiveFloat
    """Dense 16-bit matrix arithmetic (32-bit on CPUs), peak."""
    bandwidth: PositiveFloat
    """TB/s of its memory, peak."""
    memory: PositiveFloat
    """GB."""
    link: PositiveFloat
    """GB/s between devices of one machine, as tensor parallelism uses them."""
    price: NonNegative
    """US dollars per device and hour."""
    devices_per_node: Annotated[int, Field(ge=1)] = 8
    compute_efficiency: Efficiency | None = None
    """Share of the peak that generation reaches; none: the value in the constants. `rollweave profile` measures it."""
    bandwidth_efficiency: Efficiency | None = None
    """The same for the memory bandwidth."""
    training_efficiency: Efficiency | None = None
    """Share of the peak that training reaches; none: the value in the constants."""
    step_overhead: NonNegative | None = None
    """Seconds that an engine step takes beside arithmetic and memory; none: the value in the constants."""
    measured: Measured | None = None
    """Times that `rollweave profile` measured for one model; for that model they replace everything above."""
    source: str = ""
    """Where the numbers come from."""


DEVICES = Catalogue(Device, Path(__file__).with_name("devices.yaml"))


# ------------------------------------------------------------------------------------ what no data sheet tells us


class Constants(Section):
    """How much of the peaks real software reaches, and what happens between the devices; each with its source.

    All experiments use this one set, except for a bandwidth that two of them set themselves. `assumed` marks a number
    that neither a paper nor a public measurement gives.
    """

    renamed: ClassVar[dict[str, str]] = {"max_batch": "slots", "prefill_chunk": "prefill_tokens"}
    # --------------------------------------------------------------------------------------------- generation
    compute_efficiency: Efficiency = 0.55
    """Share of peak arithmetic in prefill. Assumed: large matrix products reach 0.6 to 0.7, attention less."""
    bandwidth_efficiency: Efficiency = 0.8
    """Share of peak bandwidth in decoding. Assumed: streaming reads reach 0.8 to 0.9."""
    step_overhead: NonNegative = 0.004
    """Seconds per engine step for scheduling, sampling and launching. Assumed: a few ms, with CUDA graphs."""
    memory_utilisation: Efficiency = 0.9
    """Share of device memory that an engine takes: vLLM's default `gpu_memory_utilization`."""
    activation_gb: NonNegative = 4.0
    """The part of that memory that is neither weights nor KV cache, per device. Assumed."""
    kv_watermark: NonNegative = 0.01
    """Share of the KV cache kept free when a request is let in: vLLM's default `watermark`."""
    slots: PositiveInt = 256
    """Requests an engine runs at once: vLLM's default `max_num_seqs`."""
    prefill_tokens: PositiveInt = 8192
    """Context tokens computed per step at most: vLLM's default `max_num_batched_tokens` with chunked prefill."""
    allreduce_latency: NonNegative = 1e-5
    """Seconds of each of the two all-reduces per layer under tensor parallelism, beside the bytes. Assumed."""
    handover_bandwidth: PositiveFloat = 20.0
    """GB/s at which a prefill worker hands its KV cache to a decode worker. Assumed: 200 Gbit/s, RollArt 1.6."""
    # ----------------------------------------------------------------------------------------------- training
    training_efficiency: Efficiency = 0.12
    """Model FLOPs utilisation of an RL train step, packing and moving states included. RollArt, section 2 (84 s for 128
    SWE-bench trajectories of an 8B model on 32 H800) and RollPacker, section 2 (23 % of a 14B step of 1,024 short
    answers on 32 H800) both come to about this; Megatron alone reaches 0.3 to 0.45."""
    training_passes: PositiveFloat = 5.0
    """Forward passes that a trained token costs in all: backward counts 2, forward 1, log-probs of the behaviour and
    of the reference policy 1 each."""
    training_overhead: NonNegative = 5.0
    """Seconds per step for loading, packing and the optimiser. Assumed."""
    # ------------------------------------------------------------------------------------------------ weights
    snapshot_bandwidth: PositiveFloat = 20.0
    """GB/s from the trainer's devices to the memory of its machine: the only copy that training waits for. Assumed: one
    PCIe link."""
    push_bandwidth: PositiveFloat = 0.45
    """GB/s from the trainer to the weight store. RollArt, Table 4: 0.41 to 0.48 effective."""
    pull_bandwidth: PositiveFloat = 2.0
    """GB/s from the store to an engine. RollArt, Table 4: 1.7 to 2.5 effective."""
    pull_exposed_share: Share = 0.27
    """Share of the pull during which engines stand still. RollArt, Table 4: 67 to 78 % is hidden."""
    broadcast_bandwidth: PositiveFloat = 2.0
    """GB/s of a blocking broadcast from trainer to engines, the baseline. RollArt, Table 3: about 2 over TCP."""
    # ------------------------------------------------------------------------------------------------ rewards
    cold_start: NonNegative = 10.0
    """Seconds until a new serverless instance answers. Assumed: unknown in the papers."""
    serverless_io: NonNegative = 0.01
    """Seconds of transport per reward call. RollArt, section 7: 0.01 on average."""
