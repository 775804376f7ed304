"""The daemon's HTTP interface: what people and jobs may ask, each with the token. No decisions here.

GET  /cluster              nodes, who holds them, who waits        POST /cluster/stop
GET  /jobs  /jobs/ID       records                                 POST /jobs, /jobs/ID/cancel, /jobs/ID/resume
POST /jobs/ID/turn         hand back a permit, wait for the next   POST /jobs/ID/profile
POST /jobs/ID/awaited      does anybody wait for nodes of this turn that it could do without?
POST /jobs/ID/narrow       hand back some of its nodes             POST /jobs/ID/widened   wait until it has all

The desk: what the HTTP interface may ask for. Turns wait here until they come; the rest is answered at once.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from rollweave.clock import Clock
from rollweave.errors import RollweaveError
from rollweave.mux.daemon.controller import Ask, Controller, UnknownJob, Wanted
from rollweave.mux.daemon.records import JobRecord, PhaseTimes
from rollweave.mux.daemon.store import StateFolder, StoreError
from rollweave.mux.daemon.views import cluster_view, job_view
from rollweave.mux.permits import Permit, StalePermit

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

    def profiled(self, job: str, attempt: int, measured: PhaseTimes, memory_gb: float) -> None:
        self.controller.profiled(job, attempt, measured, memory_gb)

    # ------------------------------------------------------------------------------------------- for people

    def submit(
        self, name: str, source: str, job_yaml: str, slo: float, steps: int, n_roll: int, n_train: int
    ) -> dict[str, Any]:
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


WRONG_TOKEN = (
    "wrong or missing token: the right one is in the file `token` of the daemon's state folder; name that folder with "
    "--state, or give its token as `Authorization: Bearer ...`"
)


class FiniteMessage(BaseModel):
    """What is sent becomes part of the daemon's state, which holds finite numbers only."""

    model_config = ConfigDict(allow_inf_nan=False)


class Submission(FiniteMessage):
    """A checked job file and what its owner wants."""

    name: str
    source: str
    job_yaml: str
    slo: float
    steps: int = Field(gt=0)
    n_roll: int = Field(1, gt=0)
    n_train: int = Field(1, gt=0)


class TurnMessage(FiniteMessage):
    attempt: int
    ticket: str
    wanted: Wanted
    epoch: int | None = None
    step: int = 0
    tokens: int = 0
    warm_seconds: float = 0.0
    partly: bool = False


class PermitMessage(FiniteMessage):
    """About a turn that goes on. `keep`: with so many of its nodes."""

    attempt: int
    epoch: int
    keep: int = Field(1, gt=0)


class ProfileMessage(FiniteMessage):
    attempt: int
    t_roll: float
    t_train: float
    memory_gb: float


def make_app(desk: Desk, token: str) -> FastAPI:
    async def known(authorization: str = Header("")) -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, WRONG_TOKEN)

    app = FastAPI(title="rollweave cluster", dependencies=[Depends(known)], docs_url=None, redoc_url=None)
    app.add_exception_handler(RollweaveError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StoreError, partial(_broken, desk))
    app.add_exception_handler(Exception, partial(_failed, desk))
    for method, path, answer in _routes(desk):
        app.add_api_route(path, answer, methods=[method], response_model=None)
    return app


def _routes(desk: Desk) -> list[tuple[str, str, Callable[..., Awaitable[Any]]]]:
    async def cluster() -> dict[str, Any]:
        return desk.cluster()

    async def stop(leave_jobs: bool = False) -> dict[str, Any]:
        return desk.stop(leave_jobs)

    async def jobs() -> list[dict[str, Any]]:
        return desk.jobs()

    async def job(job_id: str) -> dict[str, Any]:
        return desk.job(job_id)

    async def submit(submission: Submission) -> dict[str, Any]:
        return desk.submit(**submission.model_dump())

    async def cancel(job_id: str) -> dict[str, Any]:
        return desk.cancel(job_id)

    async def resume(job_id: str) -> dict[str, Any]:
        return desk.resubmit(job_id)

    async def turn(job_id: str, message: TurnMessage) -> dict[str, Any]:
        return {"permit": await desk.turn(Ask(job_id, **message.model_dump()))}

    async def awaited(job_id: str, message: PermitMessage) -> dict[str, Any]:
        return {"awaited": await desk.awaited(job_id, message.attempt, message.epoch, message.keep)}

    async def narrow(job_id: str, message: PermitMessage) -> dict[str, Any]:
        return {"permit": desk.narrow(job_id, message.attempt, message.epoch, message.keep)}

    async def widened(job_id: str, message: PermitMessage) -> dict[str, Any]:
        return {"permit": await desk.widened(job_id, message.attempt, message.epoch)}

    async def profile(job_id: str, message: ProfileMessage) -> dict[str, Any]:
        desk.profiled(job_id, message.attempt, PhaseTimes(message.t_roll, message.t_train), message.memory_gb)
        return {}

    return [
        ("GET", "/cluster", cluster),
        ("POST", "/cluster/stop", stop),
        ("GET", "/jobs", jobs),
        ("POST", "/jobs", submit),
        ("GET", "/jobs/{job_id}", job),
        ("POST", "/jobs/{job_id}/cancel", cancel),
        ("POST", "/jobs/{job_id}/resume", resume),
        ("POST", "/jobs/{job_id}/turn", turn),
        ("POST", "/jobs/{job_id}/awaited", awaited),
        ("POST", "/jobs/{job_id}/narrow", narrow),
        ("POST", "/jobs/{job_id}/widened", widened),
        ("POST", "/jobs/{job_id}/profile", profile),
    ]


async def _broken(desk: Desk, request: Request, error: Exception) -> JSONResponse:
    """What cannot be written down must not be acted on: the daemon ends, and the next one begins from the disk. Whoever
    asks this one until then hears of nothing that is not there."""
    desk.controller.load()
    desk.give_up(str(error))
    return JSONResponse({"detail": str(error)}, 503)


async def _failed(desk: Desk, request: Request, error: Exception) -> JSONResponse:
    """An error of ours: nothing of what was begun has happened, and whoever asked may ask again. The log has more."""
    desk.controller.load()
    return JSONResponse({"detail": f"{type(error).__name__}: {error}; see the daemon's log"}, 500)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """What the caller can fix, in words."""
    code = 404 if isinstance(error, UnknownJob) else 409 if isinstance(error, StalePermit) else 422
    return JSONResponse({"detail": str(error)}, code)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    """In words of ours: an answer that repeats what was sent cannot be written if that is no number."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())}, 422)
