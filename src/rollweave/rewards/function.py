"""Makes a function of a platform from a reward: functions-framework (Cloud Run, Knative), AWS Lambda.

    # main.py
    from rollweave.rewards.function import as_function
    score = as_function("my_reward.py:score")

and `functions-framework --target score` serves it; docs/functions.md shows each platform. This module imports no web
framework: what it is given and returns are the objects of the platform.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rollweave.config.secrets import read_secret
from rollweave.rewards.answering import Answerer
from rollweave.rewards.scorer import call_in_thread
from rollweave.rewards.wire import WrongMessage

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}

HttpAnswer = tuple[str, int, dict[str, str]]


class _Gate:
    """One reward with the token that its requests need."""

    def __init__(self, target: str, base: Path | None, token: str | None) -> None:
        self._answerer = Answerer(target, base or Path(), call_in_thread)
        self._token = read_secret(token, "token")

    async def answer(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        given = headers.get("Authorization") or headers.get("authorization") or ""
        if self._token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return "the request has no token, or a wrong one", 401, TEXT
        try:
            return await self._answerer.answer(body), 200, JSON
        except WrongMessage as wrong:
            return str(wrong), 400, TEXT


def as_function(target: str, base: Path | None = None, token: str | None = None) -> Callable[[Any], HttpAnswer]:
    """For `functions-framework --target ...`: takes a request of Flask. `target`: `file.py:name`, from the folder
    `base` (the working directory). `token`: `env:NAME` or `file:PATH`, if requests need one."""
    gate = _Gate(target, base, token)

    def function(request: Any) -> HttpAnswer:
        return asyncio.run(gate.answer(request.headers, request.get_data()))

    return function


def as_async_function(
    target: str, base: Path | None = None, token: str | None = None
) -> Callable[[Any], Awaitable[Any]]:
    """The same for `functions-framework --asgi`: takes a request of Starlette, and serves many at once."""
    gate = _Gate(target, base, token)

    async def function(request: Any) -> Any:
        from starlette.responses import Response

        text, status, headers = await gate.answer(request.headers, await request.body())
        return Response(text, status, headers)

    return function


def as_lambda(
    target: str, base: Path | None = None, token: str | None = None
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """For AWS Lambda behind a function URL or an API gateway: takes an event and a context."""
    gate = _Gate(target, base, token)

    def function(event: dict[str, Any], context: Any) -> dict[str, Any]:
        body = event.get("body") or ""
        data = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
        text, status, headers = asyncio.run(gate.answer(event.get("headers") or {}, data))
        return {"statusCode": status, "headers": headers, "body": text}

    return function
