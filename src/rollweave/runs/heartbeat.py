"""The heartbeat of a run: once a second it asks everybody what they wait for and has it written down.

It may not be held up by what it reports: an engine that does not answer in time is shown as it last was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rollweave.clock import Clock
from rollweave.engines.protocol import Engine, EngineStats
from rollweave.errors import WorkerDied
from rollweave.observability.status_board import StatusBoard
from rollweave.pipelines.assemble import Machinery

SECONDS = 1.0

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long an engine has to say what it has done."""


async def heartbeat(board: StatusBoard, machinery: Machinery, clock: Clock) -> None:
    """Keep the board up to date, until cancelled."""
    stats = [EngineStats() for _ in machinery.engines]
    while True:
        try:
            stats = await _ask(machinery.engines, stats)
            elsewhere = await machinery.waits()
            board.update([*clock.waiting(), *elsewhere], stats)
        except Exception:  # the boundary between a run and those who only look at it
            log.exception("status.json could not be written")
        await clock.sleep(SECONDS)


async def _ask(engines: Sequence[Engine], last: list[EngineStats]) -> list[EngineStats]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return [await engine.stats() for engine in engines]
    except (TimeoutError, WorkerDied):
        return last
