"""Orders to a running job: how many engines a pool is to have. A command writes them, the driver reads them.

The file lies in the run folder, as status.json does: what may write there may give orders.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from rollweave.clock import Clock
from rollweave.observability.jsonl import encode, read_object, replace_file

FILE = "engines.json"
LOOK_SECONDS = 1.0


def write_order(run: Path, engines: dict[str, int]) -> None:
    """Ask for so many engines in these pools; earlier orders for other pools stay."""
    replace_file(run / FILE, encode({**read_object(run / FILE), **engines}) + "\n")


async def follow_orders(run: Path, scale: Callable[[str, int], Awaitable[None]], clock: Clock) -> None:
    """Carry out what is ordered, until cancelled. An order stays in force when the run is resumed."""
    while True:
        for pool, engines in read_object(run / FILE).items():
            await scale(pool, engines)
        await clock.sleep(LOOK_SECONDS)
