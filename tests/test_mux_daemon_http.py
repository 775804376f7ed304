"""The daemon's HTTP interface: the token, errors in words, requests for permits that wait."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mux_daemon_stage import Theatre
from rollweave.clock import Clock
from rollweave.mux.daemon import server as desk_module
from rollweave.mux.daemon.server import Desk, make_app
from rollweave.mux.daemon.store import StateFolder, StoreError

JOB = {"name": "a", "source": "a.yaml", "job_yaml": "name: a", "slo": 1.5, "steps": 3}


class Site:
    def __init__(self, folder: Path) -> None:
        self.theatre = Theatre(folder)
        self.desk = Desk(self.theatre.controller, StateFolder(folder), (0, 1), Clock())
        self.app = make_app(self.desk, "secret")

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> httpx2.Response:
        """In this thread, to which the store belongs."""

        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://daemon") as client:
                known = {"Authorization": "Bearer secret"} if headers is None else headers
                known = {"Content-Type": "application/json", **known}
                # Python's own JSON: it writes NaN and Infinity, which a client may send.
                return await client.request(method, path, content=json.dumps(body), headers=known)

        return asyncio.run(ask())

    def get(self, path: str) -> httpx2.Response:
        return self.call("GET", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        return self.call("POST", path, body or {})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(desk_module, "POLL_SECONDS", 0.0)
    return Site(tmp_path)


def asking(life: int, ticket: str, wanted: str, epoch: int | None = None) -> dict[str, Any]:
    return {"life": life, "ticket": ticket, "wanted": wanted, "epoch": epoch}


def test_without_the_token_nothing_is_told(site: Site) -> None:
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "secret"}):
        for method, path in (("GET", "/jobs"), ("POST", "/daemon/stop"), ("GET", "/daemon")):
            answer = site.call(method, path, headers=headers)
            assert answer.status_code == 401
            assert "the right one is in the file `token`" in answer.json()["detail"]
    assert not site.desk.stopping.is_set()


def test_a_job_is_submitted_and_its_file_kept(site: Site) -> None:
    answer = site.post("/jobs", JOB)
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (200, "a-1", "profiling")
    assert (site.desk.folder.job("a-1") / "job.yaml").read_text() == "name: a"
    assert [job["id"] for job in site.get("/jobs").json()] == ["a-1"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slo": 0.9}, "--slo 0.9: an SLO is the slow-down that you tolerate"),
        ({"n_roll": 2}, "asks for 2 rollout and 1 train nodes, but this daemon has 1 and 1"),
        ({"n_train": 3}, "start the daemon with more"),
        ({"name": "../../outside"}, "name: String should match pattern"),
    ],
)
def test_what_can_never_run_is_refused_with_the_fix(site: Site, change: dict[str, Any], words: str) -> None:
    answer = site.post("/jobs", JOB | change)
    assert answer.status_code == 422 and words in answer.json()["detail"]
    assert site.get("/jobs").json() == []


@pytest.mark.parametrize("slo", [math.nan, math.inf, -math.inf, -1.0, 0.0])
def test_an_slo_that_promises_nothing_is_refused_and_the_next_daemon_starts(site: Site, slo: float) -> None:
    answer = site.post("/jobs", JOB | {"slo": slo})
    assert answer.status_code == 422 and "slo" in answer.json()["detail"]
    assert site.theatre.open().jobs == {}


@pytest.mark.parametrize("key", ["t_roll", "t_train", "memory_gb"])
@pytest.mark.parametrize(("value", "words"), [(math.nan, "be a finite number"), (-1.0, "be greater than")])
def test_an_impossible_profile_is_refused_and_the_next_daemon_starts(
    site: Site, key: str, value: float, words: str
) -> None:
    job = site.theatre.submit("a")
    site.theatre.launch(job)
    profile = {"life": 1, "t_roll": 1.0, "t_train": 1.0, "memory_gb": 1.0, key: value}
    answer = site.post(f"/jobs/{job}/profile", profile)
    assert answer.status_code == 422 and answer.json()["detail"].startswith(f"{key}: Input should {words}")
    assert site.theatre.open().get(job).profile is None


def test_a_job_that_cannot_be_read_is_set_aside_and_the_others_go_on(site: Site) -> None:
    """An earlier version stored a job with an SLO of infinity and placed it; the row has no number there."""
    theatre = site.theatre
    broken, other = theatre.running("broken"), theatre.running("other")
    for job in (broken, other):
        theatre.ask(job, "rollout")
    record = theatre.controller.get(broken)
    record.slo = theatre.controller.admission.state.jobs[broken].slo = math.inf
    theatre.store.save([record], theatre.controller.facts())
    controller = theatre.open()
    assert list(controller.jobs) == [other] and list(controller.admission.state.home) == [other]
    assert list(controller.permit_table.tenants) == [other]
    (said,) = controller.set_aside.values()
    assert broken in said and "slo" in said and str(theatre.store.path) in said
    site.desk.controller = controller
    assert site.get("/daemon").json()["set_aside"] == [said]
    assert site.post("/jobs", JOB).json()["id"] == "a-3", "its name is not given to another job"


def test_an_unknown_job(site: Site) -> None:
    for answer in (
        site.get("/jobs/x"),
        site.post("/jobs/x/cancel"),
        site.post("/jobs/x/permit", asking(1, "t", "start")),
    ):
        assert answer.status_code == 404 and "there is no job 'x'" in answer.json()["detail"]


def test_permits_over_http(site: Site) -> None:
    a, b = site.theatre.running("a"), site.theatre.running("b")
    first = site.post(f"/jobs/{a}/permit", asking(2, "a1", "rollout")).json()["permit"]
    assert (first["nodes"], first["cores"]) == (["rollout-0"], [0])
    assert site.post(f"/jobs/{b}/permit", asking(2, "b1", "rollout")).json()["permit"] is None
    second = site.post(f"/jobs/{a}/permit", asking(2, "a2", "train", first["epoch"])).json()["permit"]
    assert second["cores"] == [1]
    assert site.post(f"/jobs/{b}/permit", asking(2, "b1", "rollout")).json()["permit"]["epoch"] > second["epoch"]


def test_an_answer_that_got_lost_is_given_again(site: Site) -> None:
    a = site.theatre.running("a")
    first = site.post(f"/jobs/{a}/permit", asking(2, "a1", "rollout")).json()
    assert site.post(f"/jobs/{a}/permit", asking(2, "a1", "rollout")).json() == first


def test_a_stale_permit_and_a_stale_process_are_refused(site: Site) -> None:
    a = site.theatre.running("a")
    epoch = site.post(f"/jobs/{a}/permit", asking(2, "a1", "rollout")).json()["permit"]["epoch"]
    stale = site.post(f"/jobs/{a}/permit", asking(2, "a2", "train", epoch - 1))
    assert stale.status_code == 409 and f"permit number {epoch - 1}" in stale.json()["detail"]
    old = site.post(f"/jobs/{a}/permit", asking(1, "a3", "train", epoch))
    assert old.status_code == 409 and "process number 1" in old.json()["detail"]
    profile = {"life": 1, "t_roll": 1.0, "t_train": 1.0, "memory_gb": 1.0}
    assert site.post(f"/jobs/{a}/profile", profile).status_code == 409


def test_cancelling_twice_and_resuming_a_running_job(site: Site) -> None:
    a = site.theatre.running("a")
    assert "only a failed or cancelled job" in site.post(f"/jobs/{a}/resume").json()["detail"]
    assert site.post(f"/jobs/{a}/cancel").json()["state"] == "cancelled"
    assert "nothing to cancel" in site.post(f"/jobs/{a}/cancel").json()["detail"]


def test_the_daemon_shows_which_job_holds_what(site: Site) -> None:
    a, b = site.theatre.running("a"), site.theatre.running("b")
    site.post(f"/jobs/{a}/permit", asking(2, "a1", "rollout"))
    site.post(f"/jobs/{b}/permit", asking(2, "b1", "rollout"))
    rollout, train = site.get("/daemon").json()["nodes"]
    assert (rollout["holder"], rollout["waiting"], train["holder"]) == (a, [b], None)
    assert site.get(f"/jobs/{b}").json()["doing"] == f"waits for rollout-0 behind {a}"


def test_an_error_of_the_daemon_is_as_if_nothing_had_been_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails between two changes of one transition: the client may ask again, in the same words."""
    controller = site.theatre.controller
    job = site.theatre.running("a")
    site.theatre.ask(job, "rollout", ticket="1")
    held = controller.permit_table.permits[job].epoch
    life = controller.get(job).life
    with monkeypatch.context() as broken:
        broken.setattr(type(controller.permit_table), "ask", lambda *anything: 1 / 0)
        answer = site.post(f"/jobs/{job}/permit", asking(life, "2", "train", held))  # the server's log has the error
        assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["detail"]
    assert site.theatre.on_disk() == site.theatre.in_memory()
    assert controller.permit_table.permits[job].epoch == held
    answer = site.post(f"/jobs/{job}/permit", asking(life, "2", "train", held))
    assert answer.json()["permit"]["pool"] == "train"


def test_a_rollout_makes_room_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "POLL_SECONDS", 0.0)
    site = Site(tmp_path)
    site.theatre.rollout_nodes = 2
    site.desk.controller = site.theatre.open()
    job = site.theatre.submit("a", n_roll=2)
    site.theatre.profile(job)
    site.theatre.launch(job)
    site.theatre.ask(job, "start")
    permit = site.theatre.ask(job, "rollout")
    assert permit is not None
    about = {"life": 2, "epoch": permit.epoch, "keep": 1}
    assert site.post(f"/jobs/{job}/awaited", about).json() == {"awaited": False}
    assert site.post(f"/jobs/{job}/widened", about).json()["permit"]["cores"] == [0, 1]
    assert site.post(f"/jobs/{job}/narrow", about).json()["permit"]["nodes"] == ["rollout-0"]
    assert site.post(f"/jobs/{job}/narrow", {**about, "epoch": 1}).status_code == 409


def test_what_cannot_be_written_down_ends_the_daemon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*anything: object) -> None:
        raise StoreError("state.db: cannot be written (disk is full)")

    job = site.theatre.running("a")
    site.theatre.ask(job, "rollout", ticket="1")
    held, life = site.theatre.controller.permit_table.permits[job].epoch, site.theatre.controller.get(job).life
    monkeypatch.setattr(type(site.theatre.store), "save", full)
    for path, body in (("/jobs", JOB), (f"/jobs/{job}/permit", asking(life, "2", "train", held))):
        answer = site.post(path, body)
        assert (answer.status_code, answer.json()["detail"]) == (503, "state.db: cannot be written (disk is full)")
        assert site.theatre.on_disk() == site.theatre.in_memory(), "no client hears of what is not on the disk"
    assert site.desk.leaving.is_set() and not site.desk.stopping.is_set()
