"""The embedded engine's scheduler: requests in, one flat forward pass per step, completions out.

There is no prefill phase and no decode phase. Every running request wants the keys and values of all its tokens
computed, and each step moves `computed` towards that: one token for an answer under way, a piece of a prompt for a
new turn, a piece of the whole context after an eviction or a weight update. A request that has caught up samples a
token.

A weight update does one of three things to the answers under way. `recompute`: the cache is invalid and nothing else;
running requests find that they have computed nothing, catch up under the new weights and go on, in a new span. `keep`:
they go on at once, on the cache of the old weights, and the new span says so. `restart_turn`: what they have sampled of
their turn is thrown away, and the turn is sampled anew.

A trajectory keeps its slot of the KV cache between turns, so that the next turn computes only what is new. When a slot
is needed and none is free, the trajectory that has been idle longest loses its keys and values; they are computed again
from its tokens when it returns. Trajectories with a running request are never evicted.

A prefill engine is asked for contexts only (`Request.decode_on`): it ends such a request when the context is computed,
and a decode engine fetches the keys and values from its slot (`kv_rows`). That engine takes them when the request gets
a slot, if they are of its own version, or with `keep` of an older one; else it computes them itself.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rollweave.config.control import InFlight
from rollweave.crossing import CPU, bits, down, fill, up
from rollweave.engines.protocol import Completion, EngineStats, Finish, KvAsk, KvRows, Pull, Request
from rollweave.engines.torch.model import Chunk, forward, kv_cache
from rollweave.engines.torch.sampling import Decoder, draw, finish_of, text_of
from rollweave.engines.torch.step_time import StepTime
from rollweave.engines.torch.weights import Architecture, FusedWeights, rope_table
from rollweave.errors import ModelError
from rollweave.policies.asleep import Asleep, resident_bytes
from rollweave.policies.forward import load_model
from rollweave.trajectory import Span, TokenBuffer, TokenIds, Transform, logprob_array, token_ids
from rollweave.versions import Version
from rollweave.weights.buckets import Fingerprint, Into, RawTensor, checksum
from rollweave.weights.probe import PROBE_TOKENS, probe_tokens


@dataclass(slots=True)
class Context:
    """The tokens of one trajectory and how far the cache has followed them."""

    trajectory: str
    tokens: TokenBuffer = field(default_factory=TokenBuffer)
    slot: int | None = None
    computed: int = 0
    """Leading tokens whose keys and values are in the slot."""
    seen: int = 0
    """Leading tokens computed at any time; doing those again is recomputation."""
    kv_version: int = 0
    """The policy version that computed the first of them: the oldest, since a cache only grows at its end."""
    wanted: bool = False
    """Has a request, waiting or running."""
    released: bool = False

    def rewrite(self, tokens: TokenIds) -> None:
        """Continue from these tokens, keeping what they share with the old ones."""
        shared = _common_prefix(self.tokens.view(), tokens)
        self.tokens = TokenBuffer(tokens)
        self.seen = min(self.seen, shared)
        # The last token is always computed: its logits are what a request asks for.
        self.computed = min(self.computed, shared, len(tokens) - 1)

    def advance(self, count: int, version: int) -> int:
        """Note that `version` computed `count` more tokens; returns how many of them had been there before."""
        if self.computed == 0:
            self.kv_version = version
        again = max(0, min(self.seen - self.computed, count))
        self.computed += count
        self.seen = max(self.seen, self.computed)
        return again

    def shares(self, tokens: TokenIds) -> int:
        """Leading tokens of these whose keys and values are in the slot. The last one is computed where it is sampled
        from."""
        return min(self.computed, _common_prefix(self.tokens.view(), tokens), len(tokens) - 1)

    def take(self, rows: KvRows) -> None:
        """Note that rows computed elsewhere are in the slot now."""
        self.kv_version = min(self.kv_version, rows.version) if self.computed else rows.version
        self.computed = max(self.computed, rows.end)


class SlotTable:
    """Contexts by trajectory; free slots lowest first, so that the slots in use lie close together."""

    def __init__(self, slots: int) -> None:
        self.evictions = 0
        self._contexts: dict[str, Context] = {}
        self._free = list(range(slots))
        self._idle: dict[str, Context] = {}  # with a slot but no running request; longest idle first

    def context(self, trajectory: str) -> Context:
        return self._contexts.setdefault(trajectory, Context(trajectory))

    def find(self, trajectory: str) -> Context | None:
        return self._contexts.get(trajectory)

    def occupy(self, context: Context) -> bool:
        """Give the context a slot for a running request; False if all slots are running."""
        if context.slot is not None:
            del self._idle[context.trajectory]
            return True
        if not self._free and not self._evict():
            return False
        context.slot = heapq.heappop(self._free)
        return True

    def rest(self, context: Context) -> None:
        """The context's request ended; its cache stays unless it was released or never got a slot."""
        context.wanted = False
        if context.slot is not None:
            self._idle[context.trajectory] = context
        if context.released:
            self.release(context.trajectory)

    def release(self, trajectory: str) -> None:
        context = self._contexts.get(trajectory)
        if context is None:
            return
        context.released = True
        if not context.wanted:
            self._vacate(context)
            del self._contexts[trajectory]

    def invalidate(self) -> None:
        """The weights changed: nothing in the cache is true any more."""
        for context in list(self._idle.values()):
            self._vacate(context)
        for context in self._contexts.values():
            context.computed = 0

    def _evict(self) -> bool:
        """Free the slot idle longest; one whose trajectory is about to run is only taken if there is no other."""
        victim = min(self._idle.values(), key=lambda context: context.wanted, default=None)
        if victim is None:
            return False
        self._vacate(victim)
        self.evictions += 1
        return True

    def _vacate(self, context: Context) -> None:
        if context.slot is not None:
            heapq.heappush(self._free, context.slot)
            self._idle.pop(context.trajectory, None)
            context.slot = None
            context.computed = 0


def _common_prefix(a: TokenIds, b: TokenIds) -> int:
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if len(different) else shorter


@dataclass(slots=True)
class DraftSpan:
    """A span that still grows, token by token."""

    version: int | None
    kv_version: int | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    raw_logprobs: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, span: Span) -> DraftSpan:
        """A span that another engine began."""
        assert span.logprobs is not None and span.raw_logprobs is not None
        lists = span.tokens.tolist(), span.logprobs.tolist(), span.raw_logprobs.tolist()
        return cls(span.version, span.kv_version, *lists)

    def finished(self, transform: Transform) -> Span:
        tokens, logprobs, raw = token_ids(self.tokens), logprob_array(self.logprobs), logprob_array(self.raw_logprobs)
        return Span(tokens, logprobs, raw, self.version, transform, self.kv_version)


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and what has been answered so far."""

    request: Request
    context: Context
    spans: list[DraftSpan] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    handed: KvRows | None = None
    """What a prefill engine computed of its context; copied into its slot when it has one."""

    @property
    def remaining(self) -> int:
        return len(self.context.tokens) - self.context.computed

    def append(self, token: int, behaviour: float, raw: float, version: int) -> None:
        kv_version = self.context.kv_version if self.context.kv_version != version else None
        if not self.spans or (self.spans[-1].version, self.spans[-1].kv_version) != (version, kv_version):
            self.spans.append(DraftSpan(version, kv_version))
        span = self.spans[-1]
        span.tokens.append(token)
        span.logprobs.append(behaviour)
        span.raw_logprobs.append(raw)
        self.answer.append(token)
        self.context.tokens.append(token)

    def restart(self) -> int:
        """Back to the prompt; returns the tokens thrown away."""
        thrown = len(self.answer)
        self.spans, self.answer = [], []
        self.context.rewrite(self.request.tokens)
        return thrown


class TorchEngine:
    """A `SteppedEngine` over `slots` trajectories of at most `max_context` tokens each.

    `model` is a causal LM of `transformers` in main memory; its weights are copied to the device.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Decoder,
        *,
        slots: int,
        prefill_tokens: int,
        max_context: int,
        in_flight: InFlight = "recompute",
        device: torch.device = CPU,
    ) -> None:
        architecture = Architecture.of(model.config)
        if max_context > architecture.positions:
            raise ModelError(
                f"rollout.max_context is {max_context}, but the model knows {architecture.positions} positions: "
                "lower it to that"
            )
        tensors = dict(model.named_parameters())  # names a tied head once, as the checksum does
        self.tokenizer = tokenizer
        self.max_context = max_context
        self.prefill_tokens = prefill_tokens
        self.in_flight = in_flight
        self._table = SlotTable(slots)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._expecting: dict[str, Sequence] = {}  # what a prefill engine has of them is on its way
        self._staged: Fingerprint | None = None
        self._asleep: Asleep | None = None
        self._slots = slots
        with torch.inference_mode():
            self._weights = FusedWeights(architecture, device, model.dtype)
            self._weights.load(partial(_hand_over, tensors))
            self._spare: FusedWeights | None = None  # allocated by the first `prepare`
            self._scored: tuple[float, ...] | None = None  # how the spare weights score the probe
            self._cache = kv_cache(self._weights, slots, max_context)
            rope = torch.view_as_real(rope_table(model.model.rotary_emb, max(max_context, PROBE_TOKENS)))
            self._rope = torch.view_as_complex(up(device, rope.numpy())[0])
        self._stats = EngineStats(checksum=checksum(tensors))
        self._step_time = StepTime()

    @classmethod
    def from_folder(cls, folder: Path | str, **options: Any) -> TorchEngine:
        """Make the engine of a Hugging Face folder with a tokenizer."""
        from transformers import AutoTokenizer

        return cls(load_model(Path(folder)), AutoTokenizer.from_pretrained(folder), **options)

    # ------------------------------------------------------------------------------- commands, between steps

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, request: Request) -> None:
        """Queue a turn, or the rest of one that was begun elsewhere. A trajectory has one turn at a time."""
        if not len(request.tokens):
            raise ValueError(f"request {request.id!r} has no tokens")
        context = self._table.context(request.trajectory)
        if context.wanted:
            raise ValueError(
                f"trajectory {request.trajectory!r} already has a request; {request.id!r} must wait for it"
            )
        context.wanted = True
        begun = [DraftSpan.of(span) for span in request.begun]
        answer = [token for span in begun for token in span.tokens]
        context.rewrite(request.context())
        sequence = Sequence(request, context, begun, answer)
        if request.kv_from is None:
            self._waiting.append(sequence)
        else:
            self._expecting[request.id] = sequence

    def abort(self, request_id: str) -> Completion | None:
        sequence = self._running.pop(request_id, None) or self._expecting.pop(request_id, None)
        if sequence is None:
            sequence = next((s for s in self._waiting if s.request.id == request_id), None)
            if sequence is None:
                return None
            self._waiting.remove(sequence)
        return self._complete(sequence, "aborted")

    def release(self, trajectory: str) -> None:
        """Give back a trajectory's slot; if it still has a request, once that ends."""
        self._table.release(trajectory)

    def lacks(self, request: Request) -> KvAsk | None:
        sequence = self._expecting.get(request.id)
        if sequence is None or sequence.request is not request:
            return None
        tokens = sequence.context.tokens.view()
        start = sequence.context.computed
        return KvAsk(request.trajectory, tokens, start) if start < len(tokens) - 1 else None

    def deliver(self, request: Request, rows: KvRows | None) -> None:
        sequence = self._expecting.get(request.id)
        if sequence is not None and sequence.request is request:
            del self._expecting[request.id]
            sequence.handed = rows
            self._waiting.append(sequence)
            if rows is not None:
                self._stats.handed_tokens += rows.end - rows.start
                self._stats.handed_bytes += rows.rows.nbytes

    def kv_rows(self, ask: KvAsk) -> KvRows | None:
        context = self._table.find(ask.trajectory)
        if context is None or (end := context.shares(ask.tokens)) <= ask.start:
            return None
        rows = bits(torch.stack([layer[context.slot, :, ask.start : end] for layer in self._cache]))
        return KvRows(ask.start, context.kv_version, rows)

    @torch.inference_mode()
    def sleep(self) -> None:
        """Between two steps: weights go to main memory, KV caches are freed and computed again later."""
        assert self._asleep is None, "it sleeps already"
        if self._staged is None:
            self._spare = None
        self._table.invalidate()
        self._cache = []
        self._asleep = Asleep(self._held())

    @torch.inference_mode()
    def wake(self) -> None:
        assert self._asleep is not None, "it is awake"
        self._asleep.wake()
        self._asleep = None
        self._cache = kv_cache(self._weights, self._slots, self.max_context)

    def resident_bytes(self) -> int:
        """Of weights and KV caches, on the device."""
        return resident_bytes(self._held())

    def _held(self) -> list[torch.Tensor]:
        sets = [self._weights] if self._spare is None else [self._weights, self._spare]
        return [*self._cache, *(tensor for one in sets for tensor in one.tensors())]

    @torch.inference_mode()
    def prepare(self, pull: Pull) -> Fingerprint:
        """Copy the weights into the spare set. Touches nothing a step reads, so it may run beside one."""
        if self._spare is None:
            self._spare = self._weights.another()
        self._staged = None
        self._staged = self._spare.load(pull)
        # Threads of torch beside those of the steps would slow these down for good: with several, `commit` scores.
        self._scored = self._score_probe(self._spare) if torch.get_num_threads() == 1 else None
        return self._staged

    def commit(self, version: int) -> None:
        if self._staged is None or self._staged.version != version or self._spare is None:
            raise ValueError(f"version {version} is not prepared (staged: {self._staged})")
        goes_on = Version(self._stats.version).history == Version(version).history
        self._weights, self._spare = self._spare, self._weights
        self._stats.version, self._stats.checksum = version, self._staged.checksum
        self._stats.probe = self._scored or self._score_probe(self._weights)
        self._staged = None
        if self.in_flight != "keep" or not goes_on:
            self._table.invalidate()
        if self.in_flight == "restart_turn":
            answering = [sequence for sequence in self._running.values() if sequence.request.decode_on is None]
            self._stats.restarted_tokens += sum(sequence.restart() for sequence in answering)

    @torch.inference_mode()
    def _score_probe(self, weights: FusedWeights) -> tuple[float, ...]:
        """In a cache of its own, which is gone afterwards."""
        architecture = weights.architecture
        tokens = probe_tokens(architecture.vocabulary)
        length = len(tokens)
        cache = kv_cache(weights, 1, length)
        logits = forward(weights, cache, self._rope, [Chunk(0, 0, length)], tokens, list(range(length - 1)))
        [targets] = up(weights.device, tokens[1:].astype(np.int64)[:, None])
        return tuple(down(logits.log_softmax(-1).gather(1, targets)[:, 0])[0].tolist())

    def stats(self) -> EngineStats:
        running = len(self._running) + len(self._expecting)
        return replace(self._stats, running=running, waiting=len(self._waiting), evictions=self._table.evictions)

    # --------------------------------------------------------------------------------------------- one step

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        started = time.perf_counter()
        completions = self._admit()
        work = self._schedule()
        if work:
            completions += self._advance(work, started)
        seconds = time.perf_counter() - started
        self._stats.busy_seconds += seconds
        if work:
            pieces = [chunk.count for _, chunk in work if chunk.count > 1]
            self._stats.prefill_seconds += self._step_time.contexts(seconds, sum(pieces), len(work) - len(pieces))
        return completions

    def _admit(self) -> list[Completion]:
        """Start waiting requests in order while slots last. A context that is already full ends at once."""
        full = []
        while self._waiting:
            sequence = self._waiting[0]
            if len(sequence.context.tokens) >= self.max_context:
                full.append(self._complete(sequence, "length"))
            elif self._table.occupy(sequence.context):
                self._take_handed(sequence)
                self._running[sequence.request.id] = sequence
            else:
                break
            self._waiting.popleft()
        return full

    def _take_handed(self, sequence: Sequence) -> None:
        """Copy what a prefill engine computed into the slot: if what precedes it is there, and these weights may use
        it. Otherwise it is computed here, which is computing it again."""
        rows, sequence.handed, context = sequence.handed, None, sequence.context
        if rows is None:
            return
        context.seen = max(context.seen, rows.end)
        current = self._stats.version
        older = rows.version < current and Version(rows.version).history == Version(current).history
        fits = rows.version == current or (self.in_flight == "keep" and older)
        if not fits or not rows.start <= context.computed < rows.end:
            return
        for layer, new in zip(self._cache, rows.rows, strict=True):
            fill(layer[context.slot, :, context.computed : rows.end], new[:, context.computed - rows.start :])
        context.take(rows)

    def _schedule(self) -> list[tuple[Sequence, Chunk]]:
        """What each running request computes in this step: single tokens by slot, then pieces of prompts."""
        work = []
        budget = self.prefill_tokens
        for sequence in self._running.values():
            context, count = sequence.context, sequence.remaining
            assert context.slot is not None
            if count > 1:
                count = min(count, budget)
                budget -= count
            if count:
                work.append((sequence, Chunk(context.slot, context.computed, count)))
        work.sort(key=lambda item: (item[1].count > 1, item[1].slot))
        return work

    def _advance(self, work: list[tuple[Sequence, Chunk]], started: float) -> list[Completion]:
        pieces: list[TokenIds] = []
        ready: list[Sequence] = []
        computed: list[Sequence] = []  # asked for the context only
        rows: list[int] = []
        again = count = 0
        for sequence, chunk in work:
            pieces.append(sequence.context.tokens.view()[chunk.start : chunk.end])
            recomputed = sequence.context.advance(chunk.count, self._stats.version)
            first_time = min(chunk.end, len(sequence.request.tokens)) - chunk.start - recomputed
            self._stats.prefilled_tokens += max(0, first_time)
            again += recomputed
            count += chunk.count
            if sequence.remaining == 0 and sequence.request.decode_on is not None:
                computed.append(sequence)
            elif sequence.remaining == 0:
                ready.append(sequence)
                rows.append(count - 1)
        chunks, tokens = [chunk for _, chunk in work], np.concatenate(pieces)
        logits = forward(self._weights, self._cache, self._rope, chunks, tokens, rows)
        completions = [self._end(sequence, "stop") for sequence in computed]
        completions += self._sample(ready, logits) if ready else []
        self._stats.steps += 1
        self._stats.recomputed_tokens += again
        self._stats.recompute_seconds += (time.perf_counter() - started) * again / count
        return completions

    def _sample(self, ready: list[Sequence], logits: torch.Tensor) -> list[Completion]:
        draws = draw(
            logits,
            [s.request.sampling for s in ready],
            seeds=[s.request.seed for s in ready],
            places=[len(s.answer) for s in ready],
        )
        self._stats.sampled_tokens += len(ready)
        completions = []
        for sequence, token, behaviour, raw in zip(ready, draws.tokens, draws.behaviour, draws.raw, strict=True):
            sequence.append(token, behaviour, raw, self._stats.version)
            room = self.max_context - len(sequence.context.tokens)
            if finish := finish_of(sequence.answer, sequence.request.sampling, room, self.tokenizer):
                completions.append(self._end(sequence, finish))
        return completions

    def _end(self, sequence: Sequence, finish: Finish) -> Completion:
        del self._running[sequence.request.id]
        return self._complete(sequence, finish)

    def _complete(self, sequence: Sequence, finish: Finish) -> Completion:
        self._table.rest(sequence.context)
        text = text_of(sequence.answer, sequence.request.sampling, self.tokenizer)
        spans = [span.finished(sequence.request.sampling.transform) for span in sequence.spans]
        return Completion(sequence.request.id, spans, finish, text)


def _hand_over(tensors: Mapping[str, Any], into: Into) -> None:
    for name, tensor in tensors.items():
        into(name, RawTensor.of(tensor))
