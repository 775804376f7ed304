"""How long an engine stalls for new weights, in the three ways it could stage them.

A model of SmolLM2's size (135M parameters, 540 MB) with random weights generates eight answers while new versions
arrive through the shared-memory store. `prepare` is run at once between two steps, a bucket at a time between two
steps, and in a thread beside them, which is what an engine with a process of its own does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rollweave.clock import Clock
from rollweave.engines.loop import Background, EngineLoop
from rollweave.engines.protocol import Request, Sampling
from rollweave.engines.torch.engine import TorchEngine
from rollweave.trajectory import token_ids
from rollweave.weights import buckets
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.shared_store import SharedMemoryStore

ANSWERS = 8

EXPOSED_SHARE, EXPOSED_SECONDS = 0.1, 0.3
"""How long the engine may stand still, of the whole update and at all. Only the third way has to keep it."""


class Turns:
    """Lets a thread verify and stage one bucket after every step, and the steps wait for it."""

    def __init__(self) -> None:
        self._cut = buckets._cut
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._waiting = False

    def after_step(self) -> None:
        if self._waiting:
            self._go.release()
            self._done.acquire()

    async def background(self, work: Callable[[], Fingerprint]) -> Fingerprint:
        buckets._cut = self._paced
        try:
            return await asyncio.to_thread(work)
        finally:
            buckets._cut = self._cut

    def _paced(self, layout: Sequence[buckets.Placed], bucket_bytes: int) -> Iterator[buckets.Bucket]:
        *others, last = self._cut(layout, bucket_bytes)
        self._waiting = True
        for bucket in (*others, last):
            self._go.acquire()
            yield bucket
            self._waiting = bucket is not last
            self._done.release()


TURNS = Turns()
WAYS: dict[str, Background | None] = {"at once": None, "buckets": TURNS.background, "thread": asyncio.to_thread}


class Mute:
    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return ""


class Steps:
    """When each step of the engine began and ended."""

    def __init__(self, core: TorchEngine) -> None:
        self.times: list[tuple[float, float]] = []
        self._step: Callable[[], Any] = core.step
        core.step = self._timed  # type: ignore[method-assign]

    def _timed(self) -> Any:
        began = time.perf_counter()
        completions = self._step()
        self.times.append((began, time.perf_counter()))
        TURNS.after_step()
        return completions

    def longest_gap(self, since: float, until: float) -> float:
        """Between two steps, while something went on: how long every answer stood still."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return max((b[0] - max(a[1], since) for a, b in pairs if b[0] > since and a[1] < until), default=0.0)

    def typical(self, since: float, until: float) -> float:
        return median([end - began for began, end in self.times if began >= since and end <= until] or [0.0])


async def measure(way: str, folder: Path, layers: int, versions: int) -> dict[str, Any]:
    """Medians over the versions but the first, which touches every page for the first time."""
    model = _model(layers)
    core = TorchEngine(model, Mute(), slots=ANSWERS, prefill_tokens=512, max_context=2048)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    store, steps = SharedMemoryStore(folder), Steps(core)
    loop = EngineLoop(core, store, Clock(), background=WAYS[way])
    samples = []
    with _generating(loop):
        for version in range(versions + 1):
            samples.append(await _update(loop, store, steps, version, tensors))
    kept = samples[1:]
    found = {name: median([sample[name] for sample in kept]) for name in kept[0]}
    share = found["commit_ms"] / (found["push_ms"] + found["prepare_ms"] + found["commit_ms"])
    met = way != "thread" or (share < EXPOSED_SHARE and found["commit_ms"] <= 1e3 * EXPOSED_SECONDS)
    megabytes = sum(t.nbytes for t in tensors.values()) / 1e6
    return {"prepare": way, "megabytes": megabytes, **found, "exposed_share": share, "met": met}


async def _update(
    loop: EngineLoop, store: SharedMemoryStore, steps: Steps, version: int, tensors: dict[str, Any]
) -> dict[str, float]:
    quiet = time.perf_counter()
    await asyncio.sleep(1.0)
    began = time.perf_counter()
    fingerprint = store.push(version, tensors)  # a trainer does this in its own process
    pushed = time.perf_counter()
    await loop.prepare(version)
    prepared = time.perf_counter()
    await loop.suspend()
    suspended = time.perf_counter()
    await loop.commit(version)
    await loop.resume()
    committed = time.perf_counter()
    await asyncio.sleep(0.2)
    return {
        "buckets": len(fingerprint.buckets),
        "push_ms": 1e3 * (pushed - began),
        "prepare_ms": 1e3 * (prepared - pushed),
        "commit_ms": 1e3 * (committed - suspended),
        "longest_stall_ms": 1e3 * steps.longest_gap(pushed, prepared),
        "step_ms": 1e3 * steps.typical(quiet, began),
        "step_while_preparing_ms": 1e3 * steps.typical(pushed, prepared),
    }


@contextmanager
def _generating(loop: EngineLoop) -> Any:
    running = asyncio.get_running_loop().create_task(loop.run())
    for number in range(ANSWERS):
        sampling = Sampling(max_tokens=1900)
        loop.add(Request(f"{number}#1", str(number), token_ids([1] * 64), number, sampling), lambda completion: None)
    try:
        yield
    finally:
        running.cancel()


def _model(layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, **heads, max_position_embeddings=2048, tie_word_embeddings=True)
    ).eval()


def text(row: dict[str, Any]) -> str:
    return (
        f"{row['prepare']:8} {row['megabytes']:.0f} MB in {row['buckets']:.0f} buckets: push {row['push_ms']:.0f} ms, "
        f"prepare {row['prepare_ms']:.0f} ms, commit {row['commit_ms']:.2f} ms; longest stall between steps "
        f"{row['longest_stall_ms']:.1f} ms; a step takes {row['step_ms']:.0f} ms, "
        f"{row['step_while_preparing_ms']:.0f} ms while preparing; exposed {row['exposed_share']:.1%} of the update "
        f"(bar {EXPOSED_SHARE:.0%} and {EXPOSED_SECONDS:g} s) {'met' if row['met'] else 'NOT MET'}"
    )
