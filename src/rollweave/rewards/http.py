"""One try over HTTP: posts a request of the wire format to a function, and reads the answer."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from rollweave.config.rewards import CallConfig
from rollweave.config.secrets import read_secret, without
from rollweave.errors import RewardFailed
from rollweave.rewards.delivery import TryEnd, TryFailed
from rollweave.rewards.wire import RewardAnswer, WireRequest, WrongMessage, read_answer

if TYPE_CHECKING:
    import httpx2

AGAIN: dict[int, TryEnd] = {408: "timeout", 425: "unavailable", 429: "unavailable", 502: "dropped", 503: "unavailable"}
"""Statuses after which another try may succeed, with all other 5xx."""

IDLE_CONNECTION_SECONDS = 20.0
CHUNK = 1 << 16


class HttpFunction:
    """A function behind a URL. Its connections are kept for the next calls.

    Each connection has a client of its own: a client of httpx2 looks at all its connections for every request, which
    takes most of the time with hundreds of them. And a connection that cannot be trusted any more is closed alone.
    """

    def __init__(self, url: str, config: CallConfig, setting: str) -> None:
        """`setting`: which key of the job names the token, for messages."""
        self._url = url
        self._config = config
        self._token = read_secret(config.token, setting)
        self._ssl = ssl.create_default_context()
        self._idle: list[httpx2.AsyncClient] = []

    async def send(self, request: WireRequest) -> RewardAnswer:
        import httpx2

        http, trusted = self._idle.pop() if self._idle else self._client(), False
        try:
            async with http.stream("POST", self._url, content=request.body) as response:
                body = await self._read(response)
                self._check(response, body)
            answer = read_answer(body, request.key)
            trusted = True
        except WrongMessage as wrong:
            raise TryFailed("garbled", self._clean(str(wrong))) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise TryFailed("unavailable", f"no connection to {self._url}: {_named(error)}") from None
        except httpx2.TransportError as error:
            raise TryFailed("dropped", f"the connection to {self._url} ended: {_named(error)}") from None
        finally:
            if trusted:
                self._idle.append(http)
            else:  # in what state its connection is cannot be known
                await http.aclose()
        return answer

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        limits = httpx2.Limits(max_connections=1, keepalive_expiry=IDLE_CONNECTION_SECONDS)
        # `Delivery` keeps the deadline of a try.
        return httpx2.AsyncClient(headers=headers, timeout=None, limits=limits, verify=self._ssl)

    async def _read(self, response: httpx2.Response) -> bytes:
        limit, body = self._config.max_answer_mb * 1e6, b""
        async for chunk in response.aiter_bytes(CHUNK):
            body += chunk
            if len(body) > limit:
                raise RewardFailed(
                    f"{self._url} answered more than {self._config.max_answer_mb:g} MB (call.max_answer_mb)"
                )
        return body

    def _check(self, response: httpx2.Response, body: bytes) -> None:
        status = response.status_code
        if status == 200:
            return
        said = self._clean(f"{self._url} answered {status}: {body.decode(errors='replace').strip():.200}")
        if status in AGAIN or status >= 500:
            raise TryFailed(AGAIN.get(status, "dropped"), said, _seconds(response.headers.get("Retry-After", "")))
        if status in (401, 403):
            named = "its token is wrong" if self._config.token else "it wants one"
            said += f" ({named}: call.token)"
        raise RewardFailed(said)

    def _clean(self, text: str) -> str:
        return without(self._token, text)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() else 0.0
