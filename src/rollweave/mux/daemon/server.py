"""The daemon's HTTP interface: what commands and jobs may ask, each with the token. It decides nothing.

GET  /daemon               nodes, their holders, waiting jobs      POST /daemon/stop
GET  /jobs  /jobs/ID       records                                 POST /jobs, /jobs/ID/cancel, /jobs/ID/resume
POST /jobs/ID/permit       hand back a permit, wait for the next   POST /jobs/ID/profile
POST /jobs/ID/awaited      could another job begin if this permit were narrowed?
POST /jobs/ID/narrow       hand back some of its nodes             POST /jobs/ID/widened   wait until it has all

`Desk` stands between the interface and the controller: requests for permits wait there until they are granted or a poll
is over, the rest is answered at once.
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
from rollweave.mux.daemon.views import daemon_view, job_view
from rollweave.mux.permits import Permit, StalePermit

T = TypeVar("T")

POLL_SECONDS = 20.0
"""How long a request for a permit is kept open; then the job asks again."""


class Desk:
    def __init__(self, controller: Controller, folder: StateFolder, cores: tuple[int, ...], clock: Clock) -> None:
        self.controller = controller
        self.folder = folder
        self._cores = cores
        self._clock = clock
        self._changed = asyncio.Event()
        self.stopping = asyncio.Event()
        """The daemon ends, its jobs with it."""
        self.leaving = asyncio.Event()
        """The daemon ends alone."""
        self.on_change: Callable[[], None] = lambda: None
        """Something may have to be started or ended."""

    def changed(self) -> None:
        """Let every request that waits look again."""
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()

    # -------------------------------------------------------------------------------------------- for jobs

    async def permit(self, ask: Ask) -> dict[str, Any] | None:
        """The permit once it is granted, or None after a while: then the job asks again."""
        permit = self.controller.ask(ask)
        self.changed()
        if permit is None:
            permit = await self._once(lambda: self.controller.ask(ask))
        return self._described(permit)

    async def widened(self, job: str, life: int, epoch: int) -> dict[str, Any] | None:
        """The permit once it has all its nodes, or None after a while."""
        return self._described(await self._once(lambda: self.controller.widened(job, life, epoch)))

    async def awaited(self, job: str, life: int, epoch: int, keep: int) -> bool:
        """Whether another job could begin if this permit were narrowed; looked at for a while."""
        return bool(await self._once(lambda: self.controller.awaited(job, life, epoch, keep) or None))

    def narrow(self, job: str, life: int, epoch: int, keep: int) -> dict[str, Any] | None:
        permit = self.controller.narrow(job, life, epoch, keep)
        self.changed()
        return self._described(permit)

    async def _once(self, look: Callable[[], T | None]) -> T | None:
        """What `look` finds as soon as it finds something; None: not in time."""
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

    def profiled(self, job: str, life: int, measured: PhaseTimes, memory_gb: float) -> None:
        self.controller.profiled(job, life, measured, memory_gb)

    # ------------------------------------------------------------------------------------------- for people

    def submit(
        self, name: str, source: str, job_yaml: str, slo: float, steps: int, n_roll: int, n_train: int
    ) -> dict[str, Any]:
        record = JobRecord("", name, source, slo, 0.0, n_roll, n_train, steps)
        record = self.controller.submit(record, lambda job: self._write_job(job, job_yaml))
        self.changed()
        return self.job(record.id)

    def _write_job(self, job: str, text: str) -> None:
        """Write the job file before the job is booked: a job that is known has its file."""
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

    def daemon(self) -> dict[str, Any]:
        return daemon_view(self.controller, self.folder)

    def _view(self, record: JobRecord) -> dict[str, Any]:
        return job_view(record, self.controller, Path(self.folder.run(record.id)))


WRONG_TOKEN = (
    "wrong or missing token: the right one is in the file `token` of the daemon's state folder; name that folder with "
    "--state, or give its token as `Authorization: Bearer ...`"
)


class FiniteMessage(BaseModel):
    """A body that becomes part of the daemon's state, which holds finite numbers only."""

    model_config = ConfigDict(allow_inf_nan=False)


class Submission(FiniteMessage):
    """A checked job file, its SLO and the nodes that it asks for."""

    name: str = Field(pattern=r"^[\w.-]+$")
    """It becomes part of the name of a folder."""
    source: str
    job_yaml: str
    slo: float
    steps: int = Field(gt=0)
    n_roll: int = Field(1, gt=0)
    n_train: int = Field(1, gt=0)


class AskMessage(FiniteMessage):
    """A process hands its permit back and asks for the next (`Ask`)."""

    life: int
    ticket: str
    wanted: Wanted
    epoch: int | None = None
    step: int = 0
    tokens: int = 0
    warm_seconds: float = 0.0
    partly: bool = False


class PermitMessage(FiniteMessage):
    """About a permit that is held. `keep`: how many of its nodes it would keep."""

    life: int
    epoch: int
    keep: int = Field(1, gt=0)


class ProfileMessage(FiniteMessage):
    life: int
    t_roll: float = Field(gt=0)
    t_train: float = Field(gt=0)
    memory_gb: float = Field(ge=0)


def make_app(desk: Desk, token: str) -> FastAPI:
    async def known(authorization: str = Header("")) -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, WRONG_TOKEN)

    app = FastAPI(title="rollweave daemon", dependencies=[Depends(known)], docs_url=None, redoc_url=None)
    app.add_exception_handler(RollweaveError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StoreError, partial(_broken, desk))
    app.add_exception_handler(Exception, partial(_failed, desk))
    for method, path, answer in _routes(desk):
        app.add_api_route(path, answer, methods=[method], response_model=None)
    return app


def _routes(desk: Desk) -> list[tuple[str, str, Callable[..., Awaitable[Any]]]]:
    async def daemon() -> dict[str, Any]:
        return desk.daemon()

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

    async def permit(job_id: str, message: AskMessage) -> dict[str, Any]:
        return {"permit": await desk.permit(Ask(job_id, **message.model_dump()))}

    async def awaited(job_id: str, message: PermitMessage) -> dict[str, Any]:
        return {"awaited": await desk.awaited(job_id, message.life, message.epoch, message.keep)}

    async def narrow(job_id: str, message: PermitMessage) -> dict[str, Any]:
        return {"permit": desk.narrow(job_id, message.life, message.epoch, message.keep)}

    async def widened(job_id: str, message: PermitMessage) -> dict[str, Any]:
        return {"permit": await desk.widened(job_id, message.life, message.epoch)}

    async def profile(job_id: str, message: ProfileMessage) -> dict[str, Any]:
        desk.profiled(job_id, message.life, PhaseTimes(message.t_roll, message.t_train), message.memory_gb)
        return {}

    return [
        ("GET", "/daemon", daemon),
        ("POST", "/daemon/stop", stop),
        ("GET", "/jobs", jobs),
        ("POST", "/jobs", submit),
        ("GET", "/jobs/{job_id}", job),
        ("POST", "/jobs/{job_id}/cancel", cancel),
        ("POST", "/jobs/{job_id}/resume", resume),
        ("POST", "/jobs/{job_id}/permit", permit),
        ("POST", "/jobs/{job_id}/awaited", awaited),
        ("POST", "/jobs/{job_id}/narrow", narrow),
        ("POST", "/jobs/{job_id}/widened", widened),
        ("POST", "/jobs/{job_id}/profile", profile),
    ]


async def _broken(desk: Desk, request: Request, error: Exception) -> JSONResponse:
    """The disk cannot be written, so nothing may be done: the daemon ends, and the next one begins from the disk. Until
    then this one answers with what is on the disk."""
    desk.controller.load()
    desk.give_up(str(error))
    return JSONResponse({"detail": str(error)}, 503)


async def _failed(desk: Desk, request: Request, error: Exception) -> JSONResponse:
    """An error of the daemon: the transition is taken back, and the caller may ask again. The log has the traceback."""
    desk.controller.load()
    return JSONResponse({"detail": f"{type(error).__name__}: {error}; see the daemon's log"}, 500)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """A mistake that the caller can fix: the message says how."""
    code = 404 if isinstance(error, UnknownJob) else 409 if isinstance(error, StalePermit) else 422
    return JSONResponse({"detail": str(error)}, code)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    """A body with wrong values. FastAPI would repeat them in its answer, but JSON cannot hold NaN."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())}, 422)
