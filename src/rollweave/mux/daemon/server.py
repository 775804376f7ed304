"""The daemon's HTTP interface: what commands and jobs may ask, each with the token. It decides nothing.

GET  /daemon               nodes, their holders, waiting jobs      POST /daemon/stop
GET  /jobs  /jobs/ID       records                                 POST /jobs, /jobs/ID/cancel, /jobs/ID/resume
POST /jobs/ID/permit       hand back a permit, wait for the next   POST /jobs/ID/profile
POST /jobs/ID/awaited      could another job begin if this permit were narrowed?
POST /jobs/ID/narrow       hand back some of its nodes             POST /jobs/ID/widened   wait until it has all

`Desk` has a method for each of them. Requests for permits wait there until they are granted or a poll is over, the rest
is answered at once.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field

from rollweave.clock import Clock
from rollweave.errors import RollweaveError
from rollweave.mux.daemon.controller import Ask, Controller, FiniteMessage, UnknownJob
from rollweave.mux.daemon.permit_client import POLL_SECONDS
from rollweave.mux.daemon.records import JobRecord, PhaseTimes
from rollweave.mux.daemon.store import StateFolder, StoreError
from rollweave.mux.daemon.views import daemon_view, job_view
from rollweave.mux.permits import Permit, StalePermit

T = TypeVar("T")


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


JsonView = dict[str, Any]


class Desk:
    """Answers requests. Its methods are coroutines, so that all of them run in the one thread of the controller."""

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

    async def permit(self, job_id: str, ask: Ask) -> JsonView:
        """The permit once it is granted, or None after a while: then the job asks again."""
        permit = self.controller.ask(job_id, ask)
        self.changed()
        return self._described(permit or await self._once(lambda: self.controller.ask(job_id, ask)))

    async def widened(self, job_id: str, message: PermitMessage) -> JsonView:
        """The permit once it has all its nodes, or None after a while."""
        return self._described(await self._once(lambda: self.controller.widened(job_id, message.life, message.epoch)))

    async def awaited(self, job_id: str, message: PermitMessage) -> JsonView:
        """Whether another job could begin if this permit were narrowed; looked at for a while."""
        asked = (job_id, message.life, message.epoch, message.keep)
        return {"awaited": bool(await self._once(lambda: self.controller.awaited(*asked) or None))}

    async def narrow(self, job_id: str, message: PermitMessage) -> JsonView:
        permit = self.controller.narrow(job_id, message.life, message.epoch, message.keep)
        self.changed()
        return self._described(permit)

    async def _once(self, look: Callable[[], T | None]) -> T | None:
        """What `look` finds as soon as it finds something; None: not in time."""
        until = self._clock.now() + POLL_SECONDS
        found = look()
        while found is None and (left := until - self._clock.now()) > 0 and not self.stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
            found = look()
        return found

    def _described(self, permit: Permit | None) -> JsonView:
        if permit is None:
            return {"permit": None}
        return {"permit": {**asdict(permit), "cores": self.controller.admission.cores(permit.nodes, self._cores)}}

    async def profile(self, job_id: str, message: ProfileMessage) -> JsonView:
        measured = PhaseTimes(message.t_roll, message.t_train)
        self.controller.profiled(job_id, message.life, measured, message.memory_gb)
        return {}

    # ------------------------------------------------------------------------------------------- for people

    async def submit(self, job: Submission) -> JsonView:
        record = JobRecord("", job.name, job.source, job.slo, 0.0, job.n_roll, job.n_train, job.steps)
        return self._view_changed(self.controller.submit(record, lambda name: self._write_job(name, job.job_yaml)))

    def _write_job(self, job: str, text: str) -> None:
        folder = self.folder.job(job)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.yaml").write_text(text, encoding="utf-8")

    async def cancel(self, job_id: str) -> JsonView:
        return self._view_changed(self.controller.cancel(job_id))

    async def resume(self, job_id: str) -> JsonView:
        return self._view_changed(self.controller.resubmit(job_id))

    async def stop(self, leave_jobs: bool = False) -> JsonView:
        (self.leaving if leave_jobs else self.stopping).set()
        self.changed()
        return {}

    async def jobs(self) -> list[JsonView]:
        return [self._view(record) for record in self.controller.jobs.values()]

    async def job(self, job_id: str) -> JsonView:
        return self._view(self.controller.get(job_id))

    async def daemon(self) -> JsonView:
        return daemon_view(self.controller, self.folder)

    def _view_changed(self, record: JobRecord) -> JsonView:
        self.changed()
        return self._view(record)

    def _view(self, record: JobRecord) -> JsonView:
        return job_view(record, self.controller, self.folder.run(record.id))


WRONG_TOKEN = (
    "wrong or missing token: the right one is in the file `token` of the daemon's state folder; name that folder with "
    "--state, or give its token as `Authorization: Bearer ...`"
)


def make_app(desk: Desk, token: str) -> FastAPI:
    async def known(authorization: str = Header("")) -> None:
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, WRONG_TOKEN)

    app = FastAPI(title="rollweave daemon", dependencies=[Depends(known)], docs_url=None, redoc_url=None)
    app.add_exception_handler(RollweaveError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StoreError, partial(_broken, desk))
    app.add_exception_handler(Exception, partial(_failed, desk))
    answers: dict[str, Callable[..., Any]] = {
        "GET /daemon": desk.daemon,
        "POST /daemon/stop": desk.stop,
        "GET /jobs": desk.jobs,
        "POST /jobs": desk.submit,
        "GET /jobs/{job_id}": desk.job,
    }
    for order in (desk.cancel, desk.resume, desk.permit, desk.awaited, desk.narrow, desk.widened, desk.profile):
        answers[f"POST /jobs/{{job_id}}/{order.__name__}"] = order
    for route, answer in answers.items():
        method, path = route.split()
        app.add_api_route(path, answer, methods=[method], response_model=None)
    return app


async def _broken(desk: Desk, request: Request, error: Exception) -> JSONResponse:
    """The disk cannot be written, so nothing may be done: the daemon ends, and the next one begins from the disk. Until
    then this one answers with what is on the disk."""
    desk.controller.load()
    print(error, flush=True)
    await desk.stop(leave_jobs=True)
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
