"""What no data sheet says: how much of the peaks software reaches, and what happens between the devices.

One set for all experiments. Each constant names its source; `assumed` marks what neither a paper nor a public
measurement told us.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from rollweave.config.base import Section
from rollweave.config.hardware import NonNegative

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
