"""A server with OpenAI's chat interface in the place of an engine: for evaluation, and as the client of judges.

`ChatClient` asks the server for one answer. `ServerEngine` makes an engine of it that an episode can be played with.
Such a server takes messages and not tokens, and a host speaks in tokens only, so the two agree on a code: `MessageBook`
gives every message a number, and a context is a row of these numbers. An answer repeats its number as often as it has
tokens, so that tokens are counted rightly. It has no log-probs worth the name: nothing can be trained on it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NoReturn

from rollweave.engines.protocol import Completion, EngineStats, Finish, Request, Sampling
from rollweave.environments.protocol import Message, Observation
from rollweave.errors import ConfigError
from rollweave.trajectory import Span, TokenIds, logprob_array, token_ids
from rollweave.weights.buckets import Fingerprint

KEY = "OPENAI_API_KEY"
TRIES = 5
RETRY_SECONDS = 1.0
"""Before the second try; the time doubles with each further one."""
BUSY = (408, 429, 500, 502, 503, 504)
"""Answers after which it is worth asking again."""
TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered."""

    text: str
    finish: Finish
    tokens: int


class ChatClient:
    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        """`url` is the server's, with or without `/v1`; `key` is by default that of the environment."""
        import httpx2

        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        key = key or os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = base
        self.model = model
        self._http = httpx2.AsyncClient(base_url=base, headers=headers, timeout=TIMEOUT)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(self, messages: Sequence[Message], sampling: Sampling, seed: int = 0) -> Reply:
        """One answer. A server that is busy or out of reach is asked again; what it refuses is a ConfigError."""
        options = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p}
        stop = {"stop": list(sampling.stop_strings)} if sampling.stop_strings else {}
        body = {"model": self.model, "messages": list(map(dict, messages)), "seed": seed & 0x7FFF_FFFF}
        answer = await self._post({**body, **options, **stop})
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] or ""
        except (KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{self.url} does not speak OpenAI's chat interface: it answered {answer!r:.200}"
            ) from error
        tokens = (answer.get("usage") or {}).get("completion_tokens") or 1
        return Reply(text, "length" if choice.get("finish_reason") == "length" else "stop", tokens)

    async def _post(self, body: Mapping[str, Any]) -> Any:
        import httpx2

        problem = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS * 2.0 ** (attempt - 1))
            try:
                answer = await self._http.post("/chat/completions", json=body)
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code == 200:
                return answer.json()
            problem = f"code {answer.status_code}: {answer.text:.300}"
            if answer.status_code not in BUSY:
                raise ConfigError(f"{self.url} refuses the request ({problem}); see --server, --model and {KEY}")
        raise ConfigError(f"{self.url} does not answer after {TRIES} tries ({problem}); is the server running?")


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
        messages = self._book.read(request.tokens)
        asked = asyncio.ensure_future(self._client.ask(messages, request.sampling, request.seed))
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
