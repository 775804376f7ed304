"""A server with OpenAI's chat interface in the place of an engine, for evaluation.

`ServerEngine` makes an engine of a `ChatClient` that an episode can be played with. Such a server takes messages and
not tokens, and a host speaks in tokens only, so the two agree on a code: `MessageBook` gives every message a number,
and a context is a row of these numbers. An answer repeats its number as often as it has tokens, so that tokens are
counted rightly. It has no log-probs worth the name: nothing can be trained on it.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import NoReturn

from rollweave.chat_client import ChatClient, Reply
from rollweave.engines.protocol import Completion, EngineStats, Request
from rollweave.environments.protocol import Message, Observation
from rollweave.errors import ConfigError
from rollweave.trajectory import Span, TokenIds, logprob_array, token_ids
from rollweave.weights.buckets import Fingerprint


class MessageBook:
    """A dialogue in a code of its own: one number per message."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def open(self, observation: Observation) -> TokenIds:
        messages = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
        return token_ids(self._number(message) for message in messages)

    def reply(self, observation: Observation, answered_end: bool) -> TokenIds:
        return self.open(observation)

    def ended(self, answer: TokenIds) -> bool:
        return True

    def note_answer(self, reply: Reply) -> TokenIds:
        return token_ids([self._number({"role": "assistant", "content": reply.text})] * reply.tokens)

    def read(self, tokens: TokenIds) -> list[Message]:
        return [self._messages[number] for number, _ in groupby(tokens.tolist())]

    def _number(self, message: Message) -> int:
        self._messages.append(message)
        return len(self._messages) - 1


class ServerEngine:
    """An `Engine` whose weights are the server's own business."""

    def __init__(self, client: ChatClient, book: MessageBook) -> None:
        self._client = client
        self._book = book
        self._open: dict[str, asyncio.Task[Reply]] = {}
        self._stats = EngineStats()

    async def generate(self, request: Request) -> Completion:
        sampling = request.sampling
        asked = asyncio.ensure_future(
            self._client.ask(
                self._book.read(request.tokens),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                stop=sampling.stop_strings,
                seed=request.seed,
            )
        )
        self._open[request.id] = asked
        try:
            await asyncio.wait({asked})
        finally:
            asked.cancel()
            del self._open[request.id]
        if asked.cancelled():
            return Completion(request.id, [], "aborted")
        reply = asked.result()
        tokens = self._book.note_answer(reply)
        self._stats.sampled_tokens += len(tokens)
        zeros = logprob_array([0.0] * len(tokens))
        span = Span(tokens, zeros, zeros, 0, request.sampling.transform)
        return Completion(request.id, [span], reply.finish, reply.text)

    def abort(self, request_id: str) -> None:
        if asked := self._open.get(request_id):
            asked.cancel()

    def release(self, trajectory: str) -> None:
        pass  # the server keeps nothing that we know of

    async def stats(self) -> EngineStats:
        return self._stats

    async def suspend(self, asleep: bool = False) -> None:
        self._refuse()

    async def resume(self) -> None:
        self._refuse()

    async def prepare(self, version: int) -> Fingerprint:
        self._refuse()

    async def commit(self, version: int) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(f"{self._client.url} is a server with weights of its own: it can be evaluated, not trained")
