"""Ctrl-C as a request: the first one asks for an orderly end, the second one is the usual Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress


class interrupts:
    """While open, Ctrl-C calls this instead of tearing the process down; a second one is the usual Ctrl-C."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        with suppress(ValueError, RuntimeError):  # not in the main thread (a notebook): leave signals alone
            self._loop = asyncio.get_running_loop()
            self._loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)
        self._stop()

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError, RuntimeError):
            self._loop.remove_signal_handler(signal.SIGINT)
