"""The daemon's HTTP interface: what people and jobs may ask, each with the token. No decisions here.

GET  /cluster              nodes, who holds them, who waits        POST /cluster/stop
GET  /jobs  /jobs/ID       records                                 POST /jobs, /jobs/ID/cancel, /jobs/ID/resume
POST /jobs/ID/turn         hand back a permit, wait for the next   POST /jobs/ID/profile
POST /jobs/ID/awaited      does anybody wait for nodes of this turn that it could do without?
POST /jobs/ID/narrow       hand back some of its nodes             POST /jobs/ID/widened   wait until it has all
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rollweave.errors import RollweaveError
from rollweave.mux.daemon.controller import Ask, UnknownJob, Wanted
from rollweave.mux.daemon.desk import Desk
from rollweave.mux.daemon.records import Measured
from rollweave.mux.daemon.store import StoreError
from rollweave.mux.daemon.turns import StalePermit

WRONG_TOKEN = (
    "wrong or missing token: the right one is in the file `token` of the daemon's state folder; name that folder with "
    "--state, or give its token as `Authorization: Bearer ...`"
)


class Submission(BaseModel):
    """A checked job file and what its owner wants."""

    name: str
    source: str
    job_yaml: str
    slo: float
    steps: int = Field(gt=0)
    n_roll: int = Field(1, gt=0)
    n_train: int = Field(1, gt=0)


class TurnMessage(BaseModel):
    attempt: int
    ticket: str
    wanted: Wanted
    epoch: int | None = None
    step: int = 0
    tokens: int = 0
    warm_seconds: float = 0.0
    partly: bool = False


class PermitMessage(BaseModel):
    """About a turn that goes on. `keep`: with so many of its nodes."""

    attempt: int
    epoch: int
    keep: int = Field(1, gt=0)


class ProfileMessage(BaseModel):
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
        desk.profiled(job_id, message.attempt, Measured(message.t_roll, message.t_train), message.memory_gb)
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
