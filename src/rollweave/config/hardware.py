"""The hardware catalogue: what a device class can do and what it costs, each number with its source.

A cluster file names a class from here (`device: H20`) or describes one of its own; `rollweave profile` measures one.
Speeds of GPUs are peaks, from data sheets or from the tables of the papers; those of the CPU class were measured on one
machine. How much of a peak real software reaches is in `config/hardware.py`, the same for every class unless the class
gives an efficiency of its own.

What no data sheet says: how much of the peaks software reaches, and what happens between the devices.

One set for all experiments, but for a bandwidth that two of them set themselves. Each constant names its source;
`assumed` marks what neither a paper nor a public measurement told us.

What `rollweave profile` measured of one model on one machine; beside the peaks of a device in the catalogue.

A roofline says what a device could do. These are times of the real engine, trainer, weights and hosts: where a device
has them, simulations use them instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from rollweave.config.base import Section
from rollweave.config.catalogue import Catalogue

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


NonNegative = Annotated[float, Field(ge=0.0)]


class Device(Section):
    """A class of devices, per device."""

    name: str
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
    compute_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the peak that generation reaches; none: that of the constants. `rollweave profile` measures it."""
    bandwidth_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """The same of the bandwidth."""
    training_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the peak that training reaches; none: that of the constants."""
    step_overhead: NonNegative | None = None
    """Seconds that an engine step takes beside arithmetic and memory; none: that of the constants."""
    measured: Measured | None = None
    """Times that `rollweave profile` found for one model; they come before everything above."""
    source: str = ""
    """Where the numbers come from."""


DEVICES = Catalogue(Device, Path(__file__).with_name("devices.yaml"))


Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]


class Constants(Section):
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
    """Of that, what is neither weights nor KV cache, per device. Assumed."""
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
    """Seconds a step for loading, packing and the optimiser. Assumed."""
    # ------------------------------------------------------------------------------------------------ weights
    snapshot_bandwidth: PositiveFloat = 20.0
    """GB/s from the trainer's devices to its host's memory: all that training waits for. Assumed: one PCIe link."""
    push_bandwidth: PositiveFloat = 0.45
    """GB/s from the trainer to the weight store. RollArt, Table 4: 0.41 to 0.48 effective."""
    pull_bandwidth: PositiveFloat = 2.0
    """GB/s from the store to an engine. RollArt, Table 4: 1.7 to 2.5 effective."""
    pull_exposed_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.27
    """Of the pull, what engines stand still for. RollArt, Table 4: 67 to 78 % is hidden."""
    broadcast_bandwidth: PositiveFloat = 2.0
    """GB/s of a blocking broadcast from trainer to engines, the baseline. RollArt, Table 3: about 2 over TCP."""
    # ------------------------------------------------------------------------------------------------ rewards
    cold_start: NonNegative = 10.0
    """Seconds until a new serverless instance answers. Assumed: unknown in the papers."""
    serverless_io: NonNegative = 0.01
    """Seconds of transport per reward call. RollArt, section 7: 0.01 on average."""
