"""A worker process as seen from another: called by name, and what goes wrong in it is said plainly.

Ray wraps whatever a worker raises into its own error, with a traceback for a message. Here it comes out as it was
raised there. A worker that is gone cannot say why; its name and the end of its log do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rollweave.errors import WorkerDied, first_cause

LOG_LINES = 12
"""How much of a dead worker's log is shown."""

CRASH = "Fatal Python error"
"""How `faulthandler` begins."""


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    actor: Any
    name: str
    log: Path

    async def call(self, method: str, *arguments: Any) -> Any:
        """Raises what the worker raised, or WorkerDied."""
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return await getattr(self.actor, method).remote(*arguments)
        except RayTaskError as error:
            cause = error.cause
            raise (first_cause(cause) if isinstance(cause, BaseExceptionGroup) else cause) from error
        except RayActorError as error:
            raise WorkerDied(self._obituary(error), self.name) from error

    def tell(self, method: str, *arguments: Any) -> None:
        """Call without waiting for an answer. The worker notices what goes wrong in it (see `Mishaps`)."""
        getattr(self.actor, method).remote(*arguments)

    def end(self) -> None:
        """Make sure that it is gone, though it may only have been out of reach."""
        import ray

        ray.kill(self.actor)

    def _obituary(self, error: Exception) -> str:
        if getattr(error, "actor_init_failed", False):
            return f"the worker {self.name!r} could not be started: {error}"
        lines = self._last_lines()
        said = f"the end of {self.log}:\n{lines}" if lines else f"{self.log} is empty."
        return f"the worker {self.name!r} died: its process was killed or crashed; {said}\n{self._advice()}"

    def _advice(self) -> str:
        if self.name.startswith("host"):
            return "if an environment did it, set rollout.isolation=process: then it can only end its own process"
        return (
            "if it was killed for memory (see `dmesg`), lower engine.slots or training.microbatch_tokens; "
            "`rollweave doctor` looks for what crashes on this machine"
        )

    def _last_lines(self) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:  # another machine's log, or none yet
            return ""
        _, crash, trace = text.rpartition(CRASH)
        # A crash reports its innermost line first; everything else ends with what matters.
        lines = f"{crash}{trace}".splitlines()[:LOG_LINES] if crash else text.splitlines()[-LOG_LINES:]
        return "\n".join(f"  {line}" for line in lines)


class Mishaps:
    """What goes wrong where nobody waits for an answer, kept for somebody who does."""

    def __init__(self) -> None:
        self._first: BaseException | None = None
        self._happened = asyncio.Event()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the boundary between calls that nobody awaits and `raised`
            self._first = self._first or error
            self._happened.set()

    async def raised(self) -> NoReturn:
        await self._happened.wait()
        assert self._first is not None
        raise self._first
