"""What this machine could do at best: measured GEMM speed and memory bandwidth, and the bound they set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bench.engine.workload import Trajectory, sampled_tokens


@dataclass(frozen=True, slots=True)
class Machine:
    gflops: float
    gigabytes_per_second: float


def measure(batch: int, hidden: int, intermediate: int) -> Machine:
    """GEMM at the model's own widest shape, bandwidth by reading what no cache holds."""
    x, w = torch.randn(batch, hidden), torch.randn(2 * intermediate, hidden)
    gemm = _best(lambda: torch.nn.functional.linear(x, w), repeat=50)
    memory = torch.ones(64 << 20)
    read = _best(memory.sum, repeat=3)
    return Machine(2 * batch * hidden * 2 * intermediate / gemm / 1e9, memory.nbytes / read / 1e9)


def _best(work: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(repeat):
            work()
        best = min(best, (time.perf_counter() - started) / repeat)
    return best


def bound(machine: Machine, config: Any, workload: list[Trajectory]) -> float:
    """Sampled tokens a second that no engine can exceed here: compute and memory each at full speed."""
    tokens, contexts = _work(workload)
    sampled = sampled_tokens(workload)
    layers = config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width, kv_width = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    layer = config.hidden_size * (2 * width + 2 * kv_width + 3 * config.intermediate_size)
    flops = 2 * tokens * layers * layer + 2 * sampled * config.hidden_size * config.vocab_size
    flops += 4 * contexts * layers * width
    longest = max(sum(turn.answer for turn in trajectory) for trajectory in workload)
    weights = 4 * (layers * layer + config.hidden_size * config.vocab_size)
    traffic = longest * weights + contexts * layers * 2 * kv_width * 4
    seconds = max(flops / machine.gflops, traffic / machine.gigabytes_per_second) / 1e9
    return sampled / float(seconds)


def _work(workload: list[Trajectory]) -> tuple[int, int]:
    """Tokens to compute once, and the context lengths that the sampled ones attend to, summed."""
    tokens = contexts = 0
    for trajectory in workload:
        length = 0
        for turn in trajectory:
            length += len(turn.observation)
            contexts += sum(range(length, length + turn.answer))
            length += turn.answer
        tokens += length
    return tokens, contexts
