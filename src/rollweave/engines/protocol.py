"""What the control plane asks of anything that generates tokens.

An engine takes requests one by one and answers each the moment it ends; there is no batch to wait for.
Weights change between two steps only: `prepare` stages and verifies a version in the background, `commit`
makes it current. Requests in flight go on under the new version, and their completion says where it changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rollweave.trajectory import Span, TokenIds, Transform
from rollweave.weights.buckets import Fingerprint, Into

Pull = Callable[[Into], Fingerprint]
"""Hands the tensors of a version (name as in Hugging Face, bytes) to a function, one by one, each verified."""

Finish = Literal["stop", "length", "aborted"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw the tokens of a turn."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_tokens: tuple[int, ...] = ()
    """Generation ends after one of these; the token itself is part of the answer."""
    stop_strings: tuple[str, ...] = ()
    """Generation ends once the answer's text contains one of these; what was sampled stays sampled."""

    @property
    def transform(self) -> Transform:
        return Transform(self.temperature, self.top_p, self.top_k)


@dataclass(slots=True, eq=False)
class Request:
    """One turn to generate. `tokens` is the whole context, shared with the episode and therefore read-only; the engine
    finds what it has already computed."""

    id: str
    trajectory: str
    """Turns of one trajectory share a KV cache; `release(trajectory)` gives it back."""
    tokens: TokenIds
    seed: int
    """Fixes what is sampled for this turn, whatever else is in the batch."""
    sampling: Sampling
    task: str = "default"
    """The name of its task; routing looks at it."""
    begun: tuple[Span, ...] = ()
    """What another engine has sampled of the answer already: the request was moved, and goes on from there."""
    decode_on: str | None = None
    """Asks for the context only: the engine computes it, keeps the KV cache and answers without new tokens. It is the
    id of the engine that is asked for the answer next."""
    kv_from: object | None = None
    """The address of the engine that has computed the context. The engine that answers fetches the KV cache from there,
    as far as it does not have it, and computes what it cannot get."""

    def context(self) -> TokenIds:
        """All tokens before the next one: what was asked, and what was begun."""
        if not self.begun:
            return self.tokens
        context: TokenIds = np.concatenate([self.tokens, *(span.tokens for span in self.begun)])
        return context

    def __reduce__(self) -> tuple[Any, ...]:
        """Its context travels as bytes, as the arrays of a `Span` do."""
        id, trajectory, tokens, *others = _request_fields(self)
        return _request_of_bytes, (id, trajectory, tokens.tobytes(), *others)


_request_fields = attrgetter(*(one.name for one in fields(Request)))


def _request_of_bytes(id: str, trajectory: str, context: bytes, *others: Any) -> Request:
    return Request(id, trajectory, np.frombuffer(context, np.int32), *others)


@dataclass(slots=True)
class Completion:
    """The answer to a request: spans in order, each drawn by one policy version."""

    id: str
    spans: list[Span]
    finish: Finish
    text: str = ""
    """The answer decoded, without stop tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class KvAsk:
    """What a decode engine asks of a prefill engine: the KV cache of a trajectory's context from `start` on."""

    trajectory: str
    tokens: TokenIds
    """The whole context: a cache of other tokens is of no use."""
    start: int
    """The decode engine has the tokens before this one."""


@dataclass(frozen=True, slots=True, eq=False)
class KvRows:
    """The keys and values of the tokens `start` to `end` of a context, on their way to another engine."""

    start: int
    version: int
    """The oldest policy version that computed a token of the context."""
    rows: NDArray[np.signedinteger[Any]]
    """[layers, keys and values by head, tokens, head size], as integers of their size: NumPy has no bfloat16."""

    @property
    def end(self) -> int:
        return self.start + int(self.rows.shape[2])


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine's start; from `running` on, gauges: what holds at the moment of the call."""

    steps: int = 0
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Context tokens computed for the first time."""
    recomputed_tokens: int = 0
    """Context tokens computed again: after a weight update or an eviction."""
    restarted_tokens: int = 0
    """Sampled tokens thrown away because an update began their turn again; they belong to no trajectory."""
    evictions: int = 0
    busy_seconds: float = 0.0
    prefill_seconds: float = 0.0
    """The part of `busy_seconds` in which contexts were computed, for the first time or again; in the rest answers were
    sampled. Where a step does both, the engine estimates how it is divided."""
    recompute_seconds: float = 0.0
    handed_tokens: int = 0
    """Context tokens whose keys and values came from a prefill engine."""
    handed_bytes: int = 0
    """The size of those keys and values."""
    handover_seconds: float = 0.0
    """How long requests waited for them, in sum; the other requests went on meanwhile."""
    running: int = 0
    """Requests in the batch, and those whose KV cache is on its way from a prefill engine."""
    waiting: int = 0
    """Requests that have no place in the batch yet."""
    version: int = 0
    """The policy version it generates with."""
    checksum: str = ""
    """Of the weights it generates with."""
    probe: tuple[float, ...] = ()
    """How it scored the probe with the version that it committed last (see `rollweave.weights.probe`)."""
    memory_mb: float = 0.0
    """Resident memory of the engine's process."""

    @property
    def computed_tokens(self) -> int:
        """Context tokens, the first time or again."""
        return self.prefilled_tokens + self.recomputed_tokens


class EngineClient(Protocol):
    """An engine as hosts see it. An engine that is gone raises `EngineGone` from `generate`."""

    def generate(self, request: Request) -> Awaitable[Completion]:
        """Add a request; done the moment it ends (also when aborted)."""
        ...

    def abort(self, request_id: str) -> None:
        """Stop a request between steps; its `generate` returns what it has, finish `aborted`."""
        ...

    def release(self, trajectory: str) -> None:
        """The trajectory has ended, or goes on elsewhere: its KV cache may go."""
        ...


class EngineControl(Protocol):
    """An engine as the driver sees it. An engine that is gone raises `EngineGone` from every call."""

    async def suspend(self, asleep: bool = False) -> None:
        """Returns once no step is running and none will start. It nests: each `suspend` wants its `resume`.

        `asleep`: until the last `resume` it also gives back its memory on the device. Then it holds no KV cache, and
        prepares and commits nothing. An engine whose memory no other worker wants may ignore it.
        """
        ...

    async def resume(self) -> None: ...

    async def prepare(self, version: int) -> Fingerprint:
        """Fetch and verify a version from the weight store in the background; returns the digests of what it got."""
        ...

    async def commit(self, version: int) -> None:
        """Make a prepared version current, between two steps. Any version: the first of an engine need not be 1."""
        ...

    async def stats(self) -> EngineStats: ...


class Engine(EngineClient, EngineControl, Protocol):
    """Both in one process: `EngineLoop` around the torch engine, the simulated engines."""


OnEnd = Callable[[Completion], None]


class HostedEngine(Engine, Protocol):
    """An `Engine` as the process that holds it sees it."""

    def add(self, request: Request, on_end: OnEnd) -> None:
        """Queue a request; `on_end` is called the moment it ends."""
        ...

    async def run(self) -> None:
        """Generate until cancelled. Raises EngineGone if the engine dies of itself."""
        ...


class SteppedEngine(Protocol):
    """A synchronous engine that computes one batch step per call. `EngineLoop` makes an `Engine` of it.

    Commands (`add`, `abort`, `release`, `commit`) are called between steps only, from one thread.
    """

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        ...

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> Completion | None:
        """Remove a request; returns what it had, or None if it is unknown (already ended)."""
        ...

    def release(self, trajectory: str) -> None: ...

    def step(self) -> list[Completion]:
        """Advance every running request; returns those that ended."""
        ...

    def lacks(self, request: Request) -> KvAsk | None:
        """What to fetch for a request with `kv_from`, which was added and waits for `deliver`; None: nothing."""
        ...

    def deliver(self, request: Request, rows: KvRows | None) -> None:
        """What came for it; None: nothing did, and its context is computed here. It may have ended meanwhile."""
        ...

    def kv_rows(self, ask: KvAsk) -> KvRows | None:
        """A copy of what is here of it; None if nothing is."""
        ...

    def sleep(self) -> None:
        """Between two steps: give back the memory on the device. Until `wake` nothing is asked of it."""
        ...

    def wake(self) -> None: ...

    def prepare(self, pull: Pull) -> Fingerprint:
        """Stage the weights of a version; returns what `pull` says of it. The one call that may run beside a step."""
        ...

    def commit(self, version: int) -> None:
        """Make the staged version current; what becomes of the KV caches and the answers under way is the engine's
        `in_flight`."""
        ...

    def stats(self) -> EngineStats: ...
