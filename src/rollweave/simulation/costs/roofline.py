"""What an engine's steps cost on a device, by roofline.

A step computes one token for each of the b requests that decode, and perhaps a chunk of another's context. It is two
kinds of work, each as slow as the slower of its arithmetic and its memory traffic:

    products with the weights     max(2 * active parameters * tokens / FLOPS, parameters read / bandwidth)
    attention                     max(KV bytes / bandwidth, arithmetic / FLOPS), both in proportion to the cached tokens

so a decode step takes `fixed(b) + per_cached_token * S` with S tokens in the caches of the batch. S grows by b each
step, and the time of k steps has a closed form (`simulation/hardware/batch.py`).
"""

from __future__ import annotations

from math import ceil

from rollweave.config.hardware import Constants, Device
from rollweave.config.models import ModelSpec


class EngineCosts:
    """One engine: a model on `tensor_parallel` devices."""

    def __init__(self, model: ModelSpec, device: Device, constants: Constants, tensor_parallel: int = 1) -> None:
        self.model = model
        self.device = device
        self.constants = constants
        self.tensor_parallel = tensor_parallel
        compute = device.compute_efficiency or constants.compute_efficiency
        bandwidth = device.bandwidth_efficiency or constants.bandwidth_efficiency
        self.flops = device.tflops * 1e12 * compute * tensor_parallel
        self.bandwidth = device.bandwidth * 1e12 * bandwidth * tensor_parallel
        self.overhead = constants.step_overhead if device.step_overhead is None else device.step_overhead
        self.per_cached_token = max(
            model.kv_bytes_per_token / self.bandwidth, model.attention_flops_per_pair / self.flops
        )
        self.wake = 0.0
        """Seconds that the first step after a pause takes longer."""
        self.slots = constants.slots
        self.prefill_tokens = constants.prefill_tokens
        self.kv_tokens = self._kv_tokens()
        self._fixed: dict[int, float] = {}
        self._dense = 0.0 if model.experts else model.weight_bytes / self.bandwidth
        """Seconds to read all weights; 0: it depends on which experts are chosen."""

    def fixed(self, batch: int) -> float:
        """Seconds of a decode step of this batch beside attention."""
        seconds = self._fixed.get(batch)
        if seconds is None:
            seconds = self._fixed[batch] = self.products(batch) + self.overhead
        return seconds

    def products(self, tokens: float) -> float:
        """Seconds of the products with the weights for so many tokens at once, all-reduces included."""
        model = self.model
        arithmetic = 2.0 * model.active * tokens / self.flops
        traffic = self._dense or model.params_read(tokens) * model.bytes_per_value / self.bandwidth
        together = self._all_reduces(tokens) if self.tensor_parallel > 1 else 0.0
        return together + (arithmetic if arithmetic > traffic else traffic)

    def prefill(self, tokens: int, pairs: float, batch: int) -> float:
        """Seconds that computing these context tokens adds to the steps of a decoding batch."""
        steps = self.prefill_steps(tokens)
        together = self.products(batch + tokens / steps) - self.fixed(batch) + self.overhead
        return steps * together + self.model.attention_flops_per_pair * pairs / self.flops

    def recompute(self, tokens: int, pairs: float) -> float:
        """Seconds of a prefill beside which no request decodes."""
        steps = self.prefill_steps(tokens)
        alone = self.products(tokens / steps) + self.overhead
        return steps * alone + self.model.attention_flops_per_pair * pairs / self.flops

    def prefill_steps(self, tokens: int) -> int:
        return 1 if tokens <= self.prefill_tokens else ceil(tokens / self.prefill_tokens)

    def handover(self, tokens: int) -> float:
        """Seconds for the KV cache of so many tokens to travel from a prefill worker to a decode worker."""
        return tokens * self.model.kv_bytes_per_token / (self.constants.handover_bandwidth * 1e9)

    def _all_reduces(self, tokens: float) -> float:
        parts, model = self.tensor_parallel, self.model
        travelling = 2.0 * (parts - 1) / parts * tokens * model.hidden * model.bytes_per_value
        return 2 * model.layers * (self.constants.allreduce_latency + travelling / (self.device.link * 1e9))

    def _kv_tokens(self) -> int:
        constants, parts = self.constants, self.tensor_parallel
        room = self.device.memory * constants.memory_utilisation - min(constants.activation_gb, self.device.memory / 4)
        return int((room * parts * 1e9 - self.model.weight_bytes) / self.model.kv_bytes_per_token)


class SlowedEngine(EngineCosts):
    """The same engine, slower by known factors."""

    def __init__(self, like: EngineCosts, prefill: float, decode: float) -> None:
        super().__init__(like.model, like.device, like.constants, like.tensor_parallel)
        self.slots, self.kv_tokens, self.wake = like.slots, like.kv_tokens, like.wake
        self.per_cached_token = like.per_cached_token * decode
        self._like = like
        self._by_prefill, self._by_decode = prefill, decode

    def fixed(self, batch: int) -> float:
        return self._like.fixed(batch) * self._by_decode

    def prefill(self, tokens: int, pairs: float, batch: int) -> float:
        return self._like.prefill(tokens, pairs, batch) * self._by_prefill

    def recompute(self, tokens: int, pairs: float) -> float:
        return self._like.recompute(tokens, pairs) * self._by_prefill


def pairs(new: int, context: int) -> float:
    """(new token, token of its context) pairs of a causal prefill that ends at `context` tokens."""
    return new * (context - (new - 1) / 2)
