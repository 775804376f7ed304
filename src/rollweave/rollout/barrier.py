"""The barrier of batched environments: nobody takes turn t + 1 before everybody has taken turn t.

Only `sync` uses it, as the baseline that trajectory-level asynchrony is measured against. Members come and go, and
one may be cancelled where it stands: it then counts neither as a member nor as arrived.
"""

from __future__ import annotations

import asyncio


class TurnBarrier:
    """A barrier whose members come and go."""

    def __init__(self) -> None:
        self._members = 0
        self._arrived = 0
        self._opens = asyncio.Event()

    def join(self) -> None:
        self._members += 1

    def leave(self) -> None:
        self._members -= 1
        self._open_if_complete()

    async def arrive(self) -> None:
        """Wait until every member has arrived."""
        self._arrived += 1
        opens = self._opens
        self._open_if_complete()
        try:
            await opens.wait()
        except asyncio.CancelledError:
            if not opens.is_set():  # opening has counted it out already
                self._arrived -= 1
            raise

    def _open_if_complete(self) -> None:
        if self._members and self._arrived >= self._members:
            self._arrived = 0
            self._opens.set()
            self._opens = asyncio.Event()
