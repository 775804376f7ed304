"""The desk: what the HTTP interface may ask for. Turns wait here until they come; the rest is answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rollweave.clock import Clock
from rollweave.mux.daemon.controller import Ask, Controller, Refused
from rollweave.mux.daemon.files import StateFolder
from rollweave.mux.daemon.records import JobRecord, Measured
from rollweave.mux.daemon.turns import Permit
from rollweave.mux.daemon.views import cluster_view, job_view

T = TypeVar("T")

POLL_SECONDS = 20.0
"""How long a question for a turn is kept open; then the job asks again."""


class Desk:
    def __init__(self, controller: Controller, folder: StateFolder, cores: tuple[int, ...], clock: Clock) -> None:
        self.controller = controller
        self.folder = folder
        self._cores = cores
        self._clock = clock
        self._changed = asyncio.Event()
        self.stopping = asyncio.Event()
        """The cluster ends, its jobs with it."""
        self.leaving = asyncio.Event()
        """The daemon ends alone."""
        self.on_change: Callable[[], None] = lambda: None
        """Something may have to be started or ended."""

    def changed(self) -> None:
        """Whoever waits for a turn looks again."""
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()

    # -------------------------------------------------------------------------------------------- for jobs

    async def turn(self, ask: Ask) -> dict[str, Any] | None:
        """The permit once the turn has come, or None after a while: then the job asks again."""
        permit = self.controller.ask(ask)
        self.changed()
        if permit is None:
            permit = await self._once(lambda: self.controller.ask(ask))
        return self._described(permit)

    async def widened(self, job: str, attempt: int, epoch: int) -> dict[str, Any] | None:
        """The permit once it has all its nodes, or None after a while."""
        return self._described(await self._once(lambda: self.controller.widened(job, attempt, epoch)))

    async def awaited(self, job: str, attempt: int, epoch: int, keep: int) -> bool:
        """Whether somebody waits for what this turn could do without; asked for a while."""
        return bool(await self._once(lambda: self.controller.awaited(job, attempt, epoch, keep) or None))

    def narrow(self, job: str, attempt: int, epoch: int, keep: int) -> dict[str, Any] | None:
        permit = self.controller.narrow(job, attempt, epoch, keep)
        self.changed()
        return self._described(permit)

    async def _once(self, look: Callable[[], T | None]) -> T | None:
        """What there is to be seen, as soon as there is; None: not in time."""
        until = self._clock.now() + POLL_SECONDS
        found = look()
        while found is None and (left := until - self._clock.now()) > 0 and not self.stopping.is_set():
            changed = self._changed
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                break
            found = look()
        return found

    def _described(self, permit: Permit | None) -> dict[str, Any] | None:
        if permit is None:
            return None
        return {**asdict(permit), "cores": self.controller.admission.cores(permit.nodes, self._cores)}

    def profiled(self, job: str, attempt: int, measured: Measured, memory_gb: float) -> None:
        self.controller.profiled(job, attempt, measured, memory_gb)

    # ------------------------------------------------------------------------------------------- for people

    def submit(
        self, name: str, source: str, job_yaml: str, slo: float, steps: int, n_roll: int, n_train: int
    ) -> dict[str, Any]:
        if slo < 1:
            raise Refused(
                f"--slo {slo:g} asks to be faster than alone; it is the slow-down you tolerate, at least 1 (1.5: an "
                "iteration may take half as long again as it would alone)"
            )
        record = JobRecord("", name, source, slo, 0.0, n_roll, n_train, steps)
        record = self.controller.submit(record, lambda job: self._write_job(job, job_yaml))
        self.changed()
        return self.job(record.id)

    def _write_job(self, job: str, text: str) -> None:
        """Before the job is booked: a job that is known has its file."""
        folder = self.folder.job(job)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.yaml").write_text(text, encoding="utf-8")

    def cancel(self, job: str) -> dict[str, Any]:
        self.controller.cancel(job)
        self.changed()
        return self.job(job)

    def resubmit(self, job: str) -> dict[str, Any]:
        self.controller.resubmit(job)
        self.changed()
        return self.job(job)

    def stop(self, leave_jobs: bool) -> dict[str, Any]:
        (self.leaving if leave_jobs else self.stopping).set()
        self.changed()
        return {}

    def give_up(self, why: str) -> None:
        print(why, flush=True)
        self.stop(leave_jobs=True)

    def jobs(self) -> list[dict[str, Any]]:
        return [self._view(record) for record in self.controller.jobs.values()]

    def job(self, job: str) -> dict[str, Any]:
        return self._view(self.controller.get(job))

    def cluster(self) -> dict[str, Any]:
        return cluster_view(self.controller, self.folder)

    def _view(self, record: JobRecord) -> dict[str, Any]:
        return job_view(record, self.controller, Path(self.folder.run(record.id)))
