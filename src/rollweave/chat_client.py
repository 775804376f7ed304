"""Asks a server with OpenAI's chat interface for one answer: the client of judges, and of evaluations of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollweave.config.secrets import without
from rollweave.errors import ConfigError

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
    finish: Literal["stop", "length"]
    tokens: int


class ChatClient:
    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        """`url` is the server's, with or without `/v1`."""
        import httpx2

        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url = base
        self.model = model
        self._key = key
        self._http = httpx2.AsyncClient(base_url=base, headers=headers, timeout=TIMEOUT)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int = 0,
    ) -> Reply:
        """One answer. A server that is busy or out of reach is asked again; what it refuses is a ConfigError."""
        body = {"model": self.model, "messages": list(map(dict, messages)), "seed": seed & 0x7FFF_FFFF}
        options = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p}
        answer = await self._post({**body, **options, **({"stop": list(stop)} if stop else {})})
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
            problem = f"code {answer.status_code}: {without(self._key, answer.text):.300}"
            if answer.status_code not in BUSY:
                raise ConfigError(
                    f"{self.url} refuses the request ({problem}): check the address, the name of the model "
                    f"({self.model}) and the key"
                )
        raise ConfigError(f"{self.url} does not answer after {TRIES} tries ({problem}); is the server running?")
