"""A function of functions-framework that is made to fail: `functions-framework --asgi --source FILE --target faulty`.

BENCH_FAULTS says how: `none`; `keys`, a tenth of the keys each meets one of five faults at its first try; `outage`,
nothing but 503 for the first seconds after the first request. GET says what was met.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rollweave.rewards.function import as_async_function

FAULTS = os.environ.get("BENCH_FAULTS", "none")
OUTAGE_SECONDS = float(os.environ.get("BENCH_OUTAGE", "10"))
TRY_SECONDS = float(os.environ.get("BENCH_TIMEOUT", "3"))
"""The client's deadline of a try."""
KINDS = ("unavailable", "hang", "drop", "late", "second")

answer = as_async_function("reward.py:score", Path(__file__).parent)
tries: Counter[str] = Counter()
met: Counter[str] = Counter()
began: list[float] = []


async def faulty(request: Request) -> Any:
    if request.method == "GET":
        return JSONResponse({"tries": tries.total(), "keys": len(tries), "met": met})
    began.append(time.monotonic())
    key = json.loads(await request.body())["key"]
    tries[key] += 1
    return await _meet(_fault(key, tries[key]), request)


def _fault(key: str, nth: int) -> str:
    if FAULTS == "outage" and time.monotonic() - began[0] < OUTAGE_SECONDS:
        return "unavailable"
    number = int(key[:8], 16) % (2 * len(KINDS))
    if FAULTS != "keys" or number >= len(KINDS):
        return ""
    if KINDS[number] == "second" and nth > 1:
        return "other"
    return KINDS[number] if nth == 1 else ""


async def _meet(fault: str, request: Request) -> Any:
    met[fault or "none"] += 1
    match fault:
        case "unavailable":
            return Response("not now", 503)
        case "hang":
            await asyncio.sleep(3600)
        case "late":  # the client has sent another try by then
            await asyncio.sleep(TRY_SECONDS + 1.0)
        case "second":  # slow enough for a hedge, which gets another answer, later
            await asyncio.sleep(TRY_SECONDS / 2)
    said = await answer(request)
    if fault == "drop":
        return StreamingResponse(_cut(said.body), headers={"content-length": str(len(said.body))})
    if fault == "other":
        await asyncio.sleep(TRY_SECONDS / 2)
        content = json.loads(said.body)
        return JSONResponse({**content, "reward": content["reward"] + 1000.0})
    return said


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    """The reward has been computed, and the connection ends in the middle of the answer."""
    yield body[: len(body) // 2]
    raise ConnectionResetError("cut")
