"""`rollweave reward serve`: reward functions behind HTTP, computed by one elastic pool that any number of runs share.

POST /NAME    a request of the wire format; `POST /` if there is one function
GET  /        what the pool has done so far

An answer is kept under its key for a while, and a request whose key is being computed waits for that: a run that asks
again, because its connection broke, does not make the pool compute again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from rollweave.clock import Clock
from rollweave.config.rewards import InstancesConfig, RewardConfig
from rollweave.errors import ConfigError, RollweaveError
from rollweave.rewards.delivery import TryFailed
from rollweave.rewards.pool import ElasticPool, pool_id
from rollweave.rewards.wire import InstancesUsed, RewardAnswer, WrongMessage, read_answer, write_answer
from rollweave.targets import load_target, nearest

KEPT_ANSWERS = 10_000
KEPT_TIMES = 10_000
"""Of the last calls, for the quantiles."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    targets: Sequence[str]
    base: Path
    instances: InstancesConfig
    timeout: float
    token: str | None
    max_request_mb: float


class RewardDesk:
    """Answers requests from the pool."""

    def __init__(self, options: ServeOptions, clock: Clock) -> None:
        self._clock = clock
        self._functions: dict[str, str] = {}
        """Name -> target."""
        for target in options.targets:
            name = RewardConfig(function=target).shown_name
            load_target(target, options.base)  # what cannot be loaded is refused before anything starts
            if name in self._functions:
                raise ConfigError(f"two functions are called {name!r}: serve one of them on another port")
            self._functions[name] = target
        self.pool = ElasticPool(options.instances, clock, options.base, options.timeout)
        self._id = pool_id()
        self._answers: OrderedDict[str, asyncio.Task[RewardAnswer]] = OrderedDict()
        """By key, also those that are being computed."""
        self._seconds: deque[float] = deque(maxlen=KEPT_TIMES)

    async def answer(self, name: str, body: bytes) -> str:
        """Raises TryFailed, or WrongMessage if the body is no request."""
        target, key = self._target(name), _key(body)
        task = self._answers.get(key)
        if task is None:
            task = self._answers[key] = asyncio.get_running_loop().create_task(self._compute(target, key, body))
            self._forget_old()
        try:
            answer = await asyncio.shield(task)
        except TryFailed:
            if self._answers.get(key) is task:  # the next try computes anew
                del self._answers[key]
            raise
        counts = self.pool.counts()
        return write_answer(key, replace(answer, used=InstancesUsed(self._id, counts.busy, counts.paid)))

    def counts(self) -> dict[str, Any]:
        counts = self.pool.counts()
        quantiles = {f"p{share}": float(np.percentile(self._seconds, share)) for share in (50, 90, 99) if self._seconds}
        return {
            "functions": sorted(self._functions),
            **counts._asdict(),
            "utilisation": counts.busy / counts.paid if counts.paid else 0.0,
            "seconds": quantiles,
        }

    def _target(self, name: str) -> str:
        if not name and len(self._functions) == 1:
            return next(iter(self._functions.values()))
        if name not in self._functions:
            raise WrongMessage(f"no function {name!r} here{nearest(name, self._functions)}")
        return self._functions[name]

    async def _compute(self, target: str, key: str, body: bytes) -> RewardAnswer:
        began = self._clock.now()
        try:
            return read_answer(await self.pool.call(target, body), key)
        except RollweaveError as error:  # a file that cannot be loaded in the process, for example
            return RewardAnswer(error=str(error))
        finally:
            self._seconds.append(self._clock.now() - began)

    def _forget_old(self) -> None:
        while len(self._answers) > KEPT_ANSWERS and next(iter(self._answers.values())).done():
            self._answers.popitem(last=False)


def _key(body: bytes) -> str:
    try:
        return str(json.loads(body)["key"])
    except (ValueError, KeyError, TypeError) as error:
        raise WrongMessage(f"the body is no reward request ({type(error).__name__}: {error})") from error


def make_app(options: ServeOptions) -> FastAPI:
    desk = RewardDesk(options, Clock())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await desk.pool.start_minimum()
        yield
        desk.pool.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.get("/")
    async def look(request: Request) -> Response:
        return _refused(request, options) or JSONResponse(desk.counts())

    @app.post("/")
    @app.post("/{name}")
    async def compute(request: Request, name: str = "") -> Response:
        if (refused := _refused(request, options)) is not None:
            return refused
        body = await _read(request, options.max_request_mb * 1e6)
        if body is None:
            return PlainTextResponse(f"larger than {options.max_request_mb:g} MB (--max-request-mb)", 413)
        try:
            return Response(await desk.answer(name, body), media_type="application/json")
        except WrongMessage as wrong:
            return PlainTextResponse(str(wrong), 400)
        except TryFailed as failed:
            return PlainTextResponse(str(failed), 504 if failed.end == "timeout" else 500)

    return app


def _refused(request: Request, options: ServeOptions) -> Response | None:
    if options.token is None:
        return None
    given = request.headers.get("Authorization", "")
    if hmac.compare_digest(given.encode(), f"Bearer {options.token}".encode()):
        return None
    return PlainTextResponse("the request has no token, or a wrong one", 401)


async def _read(request: Request, limit: float) -> bytes | None:
    """None: it is larger."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            return None
    return body


def serve(options: ServeOptions, host: str, port: int) -> None:
    """Until it is interrupted."""
    import uvicorn

    app = make_app(options)
    if host not in ("127.0.0.1", "localhost") and options.token is None:
        print(f"every machine that reaches {host}:{port} can call these functions: name a --token", flush=True)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)
