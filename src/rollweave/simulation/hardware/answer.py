"""A turn that a simulated GPU engine generates: what is left of it, and what was drawn under which weights."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from functools import lru_cache

import numpy as np

from rollweave.engines.protocol import Completion, Finish, Request
from rollweave.trajectory import ENDLESS, Logprobs, Span, TokenIds, Transform, repeat_item

_LOGPROBS = repeat_item(np.array([-1.0], np.float32), ENDLESS)


@lru_cache(maxsize=65536)
def some_logprobs(count: int) -> Logprobs:
    """Any finite number would do: nothing is learnt from modelled tokens. All spans of one length share an array."""
    return _LOGPROBS[:count]


class Versions:
    """Which weights an engine had at which of its steps."""

    def __init__(self) -> None:
        self._since = [0]
        self._versions = [0]

    @property
    def current(self) -> int:
        return self._versions[-1]

    def change(self, step: int, version: int) -> None:
        """The tokens of all steps after this one are drawn by `version`."""
        self._since.append(step)
        self._versions.append(version)

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """(tokens, version) of a request that drew one token in each step after `first`, up to `last`."""
        if first >= self._since[-1]:  # by far the most frequent
            return [(last - first, self._versions[-1])] if last > first else []
        runs = []
        while first < last:
            place = bisect_right(self._since, first)
            end = min(last, self._since[place]) if place < len(self._since) else last
            runs.append((end - first, self._versions[place - 1]))
            first = end
        return runs


class GpuAnswer:
    __slots__ = (
        *("asked", "computed", "context", "done", "drawn", "finish", "from_step", "joined"),
        *("kv_version", "limit", "preempted", "request", "script", "spans", "ticket"),
    )

    def __init__(self, request: Request, script: TokenIds, loop: asyncio.AbstractEventLoop) -> None:
        """`script` is the whole answer, if nothing cuts it short."""
        wanted = len(script)
        self.request = request
        self.script = script
        self.done: asyncio.Future[Completion] = loop.create_future()
        self.asked = loop.time()
        self.finish: Finish = "stop" if wanted <= request.sampling.max_tokens else "length"
        self.limit = max(1, min(wanted, request.sampling.max_tokens))
        self.context = len(request.tokens)
        """Tokens when it joined the batch: what was asked, and what it drew before it was preempted or moved."""
        self.drawn = 0
        """Tokens before it joined (again)."""
        self.spans: list[Span] = []
        self.ticket = 0
        """Its place in the batch; 0: it has none."""
        self.joined = 0
        """Step at which it joined the batch."""
        self.from_step = 0
        """It draws a token in each step after this one: its context is computed."""
        self.computed = request.kv_from is not None
        """A prefill engine has handed over the cache of its context."""
        self.preempted = False
        """Its cache was taken away to make room: all of its context is computed again."""
        self.kv_version = 0
        """The weights its cache was begun with."""
        if request.begun:
            self.spans = list(request.begun)
            self.drawn = sum(len(span.tokens) for span in self.spans)
            self.context += self.drawn

    @property
    def last_step(self) -> int:
        return self.from_step + self.limit - self.drawn

    def drawn_at(self, step: int) -> int:
        return self.drawn + max(0, step - self.from_step)

    def leave(self, step: int, versions: Versions, transform: Transform) -> None:
        """It is no longer in the batch after this step: write down what it drew."""
        for count, version in versions.between(self.from_step, step):
            self._append(count, version, transform)
            self.drawn += count

    def restart(self) -> int:
        """Begin again from the request; returns the tokens that are lost."""
        lost, self.drawn, self.spans = self.drawn, 0, []
        self.context = len(self.request.tokens)
        return lost

    def answer(self, completion: Completion) -> None:
        if not self.done.done():  # the caller may have been cancelled
            self.done.set_result(completion)

    def completion(self, aborted: bool = False) -> Completion:
        return Completion(self.request.id, self.spans, "aborted" if aborted else self.finish)

    def _append(self, count: int, version: int, transform: Transform) -> None:
        kv_version = self.kv_version if self.kv_version < version else None
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.version, last.kv_version) == (version, kv_version):
            count += len(last.tokens)
            self.spans.pop()
        logprobs = some_logprobs(count)
        # All tokens of a script are the same, so it does not matter which of them these are.
        self.spans.append(Span(self.script[:count], logprobs, logprobs, version, transform, kv_version))
