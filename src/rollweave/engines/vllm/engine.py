"""VllmEngine: vLLM behind the protocol of engines.

vLLM has its own loop, in a process of its own; this adapter follows one stream of tokens per request. A token is a
function of the request's seed, its place and its context (see `wire`), so a stream can be broken off anywhere and begun
again from what has arrived, and the answer stays the one that it would have been. That is how the engine stands still:
`suspend` breaks off all streams, `resume` begins them again. While it stands still vLLM holds no request, so weights
are loaded between two streams and never in the middle of one, and each token's version is the one that its stream was
begun under.

    prepare    store ──▶ a file in shared memory, verified            beside the streams
    commit     break off ─▶ load, pack, empty the cache ─▶ score the probe ─▶ begin again

After a commit the contexts of open requests are computed again, under the new weights (`recompute`), or their turns
begin again (`restart_turn`). vLLM keeps the cache of a trajectory between turns as blocks that any request may find by
their tokens; the oldest trajectories come first when there is no room for all.

An update that fails half-way cannot be repaired in place: the engine is dead from then on.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from rollweave.config.control import InFlight
from rollweave.config.engines import VllmEngineConfig
from rollweave.engines.protocol import Completion, EngineStats, Finish, OnEnd, Request
from rollweave.engines.torch.engine import DraftSpan
from rollweave.engines.torch.sampling import finish_of, text_of
from rollweave.engines.vllm.launch import BLOCK_TOKENS, explained, launch
from rollweave.engines.vllm.staging import WeightMapping, parameter_shapes
from rollweave.engines.vllm.wire import LOGPROBS, ORDER, DrawOrder, read_draw
from rollweave.errors import EngineGone
from rollweave.observability.memory import resident_mb
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.probe import probe_tokens
from rollweave.weights.shared_memory import shared_folder
from rollweave.weights.store import WeightStore

HEALTH_SECONDS = 0.5
"""How often an idle engine looks whether vLLM still lives."""


@dataclass(slots=True, eq=False)
class Visitor:
    """A trajectory that has requests here."""

    age: int
    """Lower is older."""
    seen: int = 0
    """Tokens of its context that were computed here at some time."""
    version: int = 0
    """The version that computed them."""


@dataclass(slots=True, eq=False)
class OpenTurn:
    """A request, and what has been answered so far."""

    request: Request
    on_end: OnEnd
    visitor: Visitor
    spans: list[DraftSpan]
    answer: list[int]
    stream: asyncio.Task[None] | None = None

    def append(self, token: int, behaviour: float, raw: float, version: int) -> None:
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(DraftSpan(version, None))
        span = self.spans[-1]
        span.tokens.append(token)
        span.logprobs.append(behaviour)
        span.raw_logprobs.append(raw)
        self.answer.append(token)

    def restart(self) -> int:
        """Back to the prompt; returns the tokens thrown away."""
        thrown = len(self.answer)
        self.spans, self.answer = [], []
        return thrown


@dataclass(slots=True)
class _BusyTime:
    """How long there was at least one stream."""

    seconds: float = 0.0
    since: float | None = None

    def note(self, busy: bool) -> None:
        now = time.perf_counter()
        if self.since is not None:
            self.seconds += now - self.since
        self.since = now if busy else None


class VllmEngine:
    """A `HostedEngine` around vLLM's AsyncLLM, which it ends when it ends."""

    def __init__(
        self,
        llm: Any,
        tokenizer: Any,
        mapping: WeightMapping,
        store: WeightStore,
        *,
        vocabulary: int,
        slots: int,
        max_context: int,
        in_flight: InFlight,
    ) -> None:
        self._llm = llm
        self._tokenizer = tokenizer
        self._mapping = mapping
        self._store = store
        self._vocabulary = vocabulary
        self._slots = slots
        self._max_context = max_context
        self.in_flight = in_flight
        self._stats = EngineStats()
        self._busy = _BusyTime()
        self._context_time = _BusyTime()
        self._contexts_open = 0
        self._names = count()
        self._ages = count()
        self._visitors: dict[str, Visitor] = {}
        self._open: dict[str, OpenTurn] = {}
        self._streams: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Future[Completion]] = set()
        self._suspensions = 0
        self._staged: Fingerprint | None = None
        self._staging = asyncio.Lock()  # one file, which is filled or loaded
        self._gone: str | None = None
        self._died = asyncio.Event()

    @classmethod
    async def start(
        cls, folder: Path, config: VllmEngineConfig, max_context: int, in_flight: InFlight, store: WeightStore
    ) -> VllmEngine:
        """Start vLLM with the policy in a Hugging Face folder; takes about 20 s."""
        from transformers import AutoConfig, AutoTokenizer

        # The file loses its name once all have mapped it, and goes with them.
        with explained(folder), shared_folder() as shared:
            mapping = WeightMapping(shared / "staged.weights", parameter_shapes(folder))
            engine = cls(
                await launch(folder, config, max_context, mapping.path),
                AutoTokenizer.from_pretrained(folder),
                mapping,
                store,
                vocabulary=AutoConfig.from_pretrained(folder).vocab_size,
                slots=config.slots,
                max_context=max_context,
                in_flight=in_flight,
            )
            # Some models start and cannot compute: better here than with the first request.
            engine._stats.probe = await engine._score_probe()
        return engine

    async def run(self) -> None:
        """Watch vLLM until cancelled, then end it. Raises EngineGone if it dies."""
        try:
            while self._gone is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEALTH_SECONDS):
                        await self._died.wait()
                if self._llm.errored:
                    self._die("its process ended")
            raise EngineGone(self._gone)
        finally:
            await self._break_off()
            self._llm.shutdown()

    # ----------------------------------------------------------------------------------------------------- requests

    def add(self, request: Request, on_end: OnEnd) -> None:
        if not len(request.tokens):
            raise ValueError(f"request {request.id!r} has no tokens")
        visitor = self._visitors.get(request.trajectory)
        if visitor is None:
            visitor = self._visitors[request.trajectory] = Visitor(next(self._ages))
        begun = [DraftSpan.of(span) for span in request.begun]
        turn = OpenTurn(request, on_end, visitor, begun, [token for span in begun for token in span.tokens])
        self._open[request.id] = turn
        if not self._suspensions:
            self._proceed(turn)

    async def generate(self, request: Request) -> Completion:
        self._check_alive()
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        self.add(request, lambda completion: None if answer.done() else answer.set_result(completion))
        return await answer

    def abort(self, request_id: str) -> None:
        turn = self._open.get(request_id)
        if turn is not None:
            if turn.stream is not None:
                turn.stream.cancel()
            self._finish(turn, "aborted")

    def release(self, trajectory: str) -> None:
        """Its blocks are the first to be overwritten when nothing else asks for them."""
        self._visitors.pop(trajectory, None)

    # ------------------------------------------------------------------------------------------------------ streams

    def _proceed(self, turn: OpenTurn) -> None:
        turn.stream = asyncio.get_running_loop().create_task(self._answer(turn), name=turn.request.id)
        self._streams.add(turn.stream)
        turn.stream.add_done_callback(self._on_stream_end)
        self._busy.note(True)

    def _on_stream_end(self, stream: asyncio.Task[None]) -> None:
        self._streams.discard(stream)
        self._busy.note(bool(self._streams))

    async def _break_off(self) -> None:
        """End all streams; what has arrived stays."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    async def _answer(self, turn: OpenTurn) -> None:
        try:
            finish = await self._follow(turn)
        except Exception as error:  # the boundary to vLLM: whatever it raises, it is of no use any more
            self._die(f"{type(error).__name__}: {error}")
        else:
            self._finish(turn, finish)

    async def _follow(self, turn: OpenTurn) -> Finish:
        """Take tokens from vLLM until the answer is over."""
        request, sampling = turn.request, turn.request.sampling
        context = [*request.tokens.tolist(), *turn.answer]
        room = self._max_context - len(context)
        most = min(sampling.max_tokens - len(turn.answer), room)
        if most <= 0:
            return "length"
        order = DrawOrder(request.seed, len(turn.answer), sampling)
        params = _sampling_params(
            max_tokens=most,
            stop_token_ids=list(sampling.stop_tokens),
            logprobs=LOGPROBS,
            extra_args={ORDER: order.packed()},
        )
        async with aclosing(self._stream(context, params, turn.visitor.age)) as outputs:
            with self._computing_context():
                output = await anext(outputs)
            self._count_context(turn.visitor, len(context), output.num_cached_tokens or 0)
            async for following in _with_first(output, outputs):
                part = following.outputs[0]
                for token, reported in zip(part.token_ids, part.logprobs, strict=True):
                    turn.append(token, *read_draw(token, reported), self._stats.version)
                    self._stats.sampled_tokens += 1
                    turn.visitor.seen = max(turn.visitor.seen, len(context))
                    room -= 1
                    if finish := finish_of(turn.answer, sampling, room, self._tokenizer):
                        return finish
        raise EngineGone(f"vLLM ended request {request.id!r} in the middle of its answer")

    @contextmanager
    def _computing_context(self) -> Iterator[None]:
        """Until the first token of an answer. vLLM computes contexts and answers in one step and does not say which
        took how long: time in which an answer waits for its first token counts as spent on contexts."""
        self._contexts_open += 1
        self._context_time.note(True)
        try:
            yield
        finally:
            self._contexts_open -= 1
            self._context_time.note(bool(self._contexts_open))

    def _stream(self, context: list[int], params: Any, priority: int) -> Any:
        from vllm.inputs import tokens_input

        return self._llm.generate(tokens_input(context), params, f"request-{next(self._names)}", priority=priority)

    def _count_context(self, visitor: Visitor, length: int, cached: int) -> None:
        again = max(0, min(visitor.seen, length) - cached)
        self._stats.prefilled_tokens += length - cached - again
        self._stats.recomputed_tokens += again
        if again > 2 * BLOCK_TOKENS and visitor.version == self._stats.version:
            self._stats.evictions += 1
        visitor.version = self._stats.version

    def _finish(self, turn: OpenTurn, finish: Finish) -> None:
        del self._open[turn.request.id]
        sampling = turn.request.sampling
        spans = [span.finished(sampling.transform) for span in turn.spans]
        turn.on_end(Completion(turn.request.id, spans, finish, text_of(turn.answer, sampling, self._tokenizer)))

    # ------------------------------------------------------------------------------------------------------ control

    async def suspend(self, asleep: bool = False) -> None:
        self._check_alive()
        self._suspensions += 1
        await self._break_off()
        await self._spoken_to(self._settle)

    async def resume(self) -> None:
        self._check_alive()
        self._suspensions -= 1
        if not self._suspensions:
            for turn in list(self._open.values()):
                self._proceed(turn)

    async def prepare(self, version: int) -> Fingerprint:
        self._check_alive()
        async with self._staging:
            self._staged = None
            self._staged = await asyncio.to_thread(self._mapping.fill, partial(self._store.pull, version))
            return self._staged

    async def commit(self, version: int) -> None:
        self._check_alive()
        async with self._staging:
            if self._staged is None or self._staged.version != version:
                raise ValueError(f"version {version} is not prepared (staged: {self._staged})")
            staged, self._staged = self._staged, None
            await self.suspend()
            await self._spoken_to(partial(self._load, staged))
            if self.in_flight == "restart_turn":
                self._stats.restarted_tokens += sum(turn.restart() for turn in self._open.values())
            await self.resume()

    async def stats(self) -> EngineStats:
        self._check_alive()
        self._busy.note(bool(self._streams))
        running = min(len(self._streams), self._slots)
        children = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        return replace(
            self._stats,
            busy_seconds=self._busy.seconds,
            prefill_seconds=self._context_time.seconds,
            running=running,
            waiting=len(self._open) - running,
            memory_mb=resident_mb(children),
        )

    # --------------------------------------------------------------------------------------------- weights and death

    async def _settle(self) -> None:
        """Returns once vLLM has ended its step: it answers a question between two steps, and after what came before."""
        await self._llm.is_paused()

    async def _load(self, staged: Fingerprint) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.pause_generation(mode="wait", clear_cache=True)
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=self._mapping.index()))
        await self._llm.finish_weight_update(str(staged.version))
        await self._llm.resume_generation()
        self._stats.probe = await self._score_probe()
        self._stats.version, self._stats.checksum = staged.version, staged.checksum

    async def _score_probe(self) -> tuple[float, ...]:
        tokens = probe_tokens(self._vocabulary).tolist()
        params = _sampling_params(max_tokens=1, prompt_logprobs=0)
        scored = [output.prompt_logprobs async for output in self._stream(tokens, params, priority=0)][-1]
        return tuple(reported[token].logprob for token, reported in zip(tokens[1:], scored[1:], strict=True))

    async def _spoken_to(self, talk: Callable[[], Awaitable[None]]) -> None:
        """Talk to vLLM. If that fails, it is dead: it may hold half of an update."""
        try:
            await talk()
        except Exception as error:  # the boundary to vLLM
            self._die(f"{type(error).__name__}: {error}")
            self._check_alive()

    def _die(self, cause: str) -> None:
        self._gone = self._gone or f"vLLM is gone: {cause}"
        self._died.set()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(EngineGone(self._gone))

    def _check_alive(self) -> None:
        if self._gone is not None:
            raise EngineGone(self._gone)


async def _with_first(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for other in rest:
        yield other


def _sampling_params(**options: Any) -> Any:
    """What all requests have in common: the worker has drawn already, and text is made here."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA, **options
    )
