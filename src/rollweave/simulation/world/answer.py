"""An answer under way in a modelled engine.

Its length and the time of each token are drawn when it begins, so the engine needs one timer for its end, not one
per token; whoever interrupts (a suspension, an abort, the engine's death) first lets it catch up with the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random

from rollweave.engines.protocol import Completion, Finish, Request
from rollweave.seeds import generator
from rollweave.simulation.durations import Duration
from rollweave.trajectory import Span

VOCABULARY = 256
LOGPROB = -1.0
"""Any finite number would do: nothing is learnt from modelled tokens."""


class Answer:
    def __init__(self, request: Request, token_seconds: Duration, length: Callable[[Random], int]) -> None:
        self.request = request
        self.done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.spans: list[Span] = []
        self._token_seconds = token_seconds
        self._length = length

    def begin(self, now: float, begun: Sequence[Span] = ()) -> None:
        """Draw everything there is to know; also to begin anew, with the same tokens. What another engine has `begun`
        is there at once: it is what would be drawn here."""
        self.began = now
        rng = generator(self.request.seed, "answer")
        wanted = max(1, self._length(rng))
        limit = self.request.sampling.max_tokens
        self._finish: Finish = "stop" if wanted <= limit else "length"
        self.spans = deepcopy(list(begun))
        self.drawn = sum(len(span.tokens) for span in begun)
        self._tokens: list[int] = []
        self._due: list[float] = []
        for place in range(min(wanted, limit)):
            seconds = self._token_seconds(rng)
            now += seconds if place >= self.drawn else 0.0
            self._due.append(now)
            self._tokens.append(rng.randrange(VOCABULARY))

    @property
    def ends_at(self) -> float:
        return self._due[-1]

    def draw_until(self, now: float, version: int, kv_version: int | None) -> None:
        """Append the tokens whose time has come."""
        while self.drawn < len(self._due) and self._due[self.drawn] <= now:
            self._append(self._tokens[self.drawn], version, kv_version)
            self.drawn += 1

    def delay(self, seconds: float) -> None:
        """What is not drawn yet comes later."""
        self._due[self.drawn :] = [due + seconds for due in self._due[self.drawn :]]

    def completion(self, aborted: bool = False) -> Completion:
        """The text names the tokens, so that an environment can tell one answer from another."""
        tokens = [token for span in self.spans for token in span.tokens]
        finish: Finish = "aborted" if aborted else self._finish
        return Completion(self.request.id, self.spans, finish, text=bytes(tokens).hex())

    def _append(self, token: int, version: int, kv_version: int | None) -> None:
        last = self.spans[-1] if self.spans else None
        if last is None or (last.version, last.kv_version) != (version, kv_version):
            last = Span([], [], [], version, self.request.sampling.transform, kv_version=kv_version)
            self.spans.append(last)
        assert last.logprobs is not None and last.raw_logprobs is not None
        last.tokens.append(token)
        last.logprobs.append(LOGPROB)
        last.raw_logprobs.append(LOGPROB)
