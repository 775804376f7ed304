"""The daemon's state on the disk: a folder, and in it one SQLite file.

state.db      jobs, permits, the scheduler's state    token         lets its reader give orders (mode 0600)
daemon.json   where the daemon listens                lock          held by the one daemon of this folder
daemon.log    what it printed                         jobs/ID/      a job: job.yaml, log, run/

In the SQLite file each job is a row, and each thing that changes as a whole (permits, the scheduler's state, counters)
is a row of `facts`; rows are JSON. A transition is one transaction: what the daemon has answered is on the disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rollweave.errors import RollweaveError
from rollweave.mux.daemon.records import JobRecord

FORMAT = 2
"""Raised when the meaning of stored rows changes; older state is refused."""

JobEvent = tuple[float, str, str, str]
"""When it happened, its name, the job, and a text for people."""

_JOB = TypeAdapter(JobRecord)
UPSERT = "INSERT INTO {} VALUES (?, ?) ON CONFLICT DO UPDATE SET body = excluded.body"

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY, at REAL, name TEXT, job TEXT, text TEXT);
CREATE INDEX IF NOT EXISTS events_of_job ON events (job, number);
"""


class StoreError(RollweaveError):
    pass


class Store:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise StoreError(f"{path}: cannot be used as the daemon's state ({error}); name another --state") from None
        found = self.fact("version")
        if found not in (None, FORMAT):
            raise StoreError(
                f"{path} has format {found}, this version of Rollweave reads format {FORMAT}: name another --state "
                "folder and submit the jobs again, or go on with the version that wrote it"
            )

    def save(self, jobs: Iterable[JobRecord], facts: Mapping[str, Any], events: Iterable[JobEvent] = ()) -> None:
        """Write all of it or nothing."""
        rows = [(job.id, _JOB.dump_json(job).decode()) for job in jobs]
        # Python's own JSON: it knows infinities, which deadlines may be.
        named = [(name, json.dumps(body)) for name, body in {"version": FORMAT, **facts}.items()]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(UPSERT.format("jobs"), rows)
            self._db.executemany(UPSERT.format("facts"), named)
            self._db.executemany("INSERT INTO events (at, name, job, text) VALUES (?, ?, ?, ?)", events)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # there may be nothing to take back
                self._db.execute("ROLLBACK")
            raise StoreError(
                f"{self.path}: cannot be written ({error}); free space on that disk and start again"
            ) from error

    def read_jobs(self) -> tuple[dict[str, JobRecord], dict[str, str]]:
        """The jobs in the order they were submitted; and for each job whose row cannot be read, a sentence that says
        why. Such a row stays where it is."""
        jobs: dict[str, JobRecord] = {}
        set_aside: dict[str, str] = {}
        for job, body in self._db.execute("SELECT id, body FROM jobs ORDER BY rowid").fetchall():
            try:
                jobs[job] = _JOB.validate_json(body)
            except ValidationError as error:
                problem = error.errors()[0]
                why = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
                set_aside[job] = (
                    f"job {job} is set aside: its row in {self.path} cannot be read ({why}); submit its job file again"
                )
        return jobs, set_aside

    def fact(self, name: str) -> Any:
        row = self._db.execute("SELECT body FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def events(self, job: str) -> list[JobEvent]:
        """The last 50 events of a job, oldest first."""
        query = "SELECT at, name, job, text FROM events WHERE job = ? ORDER BY number DESC LIMIT 50"
        return self._db.execute(query, (job,)).fetchall()[::-1]

    def close(self) -> None:
        self._db.close()


class NoDaemon(RollweaveError):
    pass


@dataclass(frozen=True, slots=True)
class StateFolder:
    path: Path

    @classmethod
    def choose(cls, given: Path | None) -> StateFolder:
        """--state, else ROLLWEAVE_STATE, else a folder in the user's home."""
        named = given or os.environ.get("ROLLWEAVE_STATE") or Path.home() / ".rollweave" / "daemon"
        return cls(Path(named).absolute())

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def log(self) -> Path:
        return self.path / "daemon.log"

    @property
    def address_file(self) -> Path:
        return self.path / "daemon.json"

    def job(self, job: str) -> Path:
        return self.path / "jobs" / job

    def run(self, job: str) -> Path:
        return self.job(job) / "run"

    def publish(self, url: str) -> None:
        partial = self.address_file.with_suffix(".partial")
        partial.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        os.replace(partial, self.address_file)

    def connection(self, timeout: float) -> dict[str, Any]:
        """How an HTTP client reaches the daemon. It is read for each call, because a daemon that came back may listen
        elsewhere. Certificates are not loaded: plain HTTP needs none, and that would take longer than a warm start."""
        url = self.address()["url"]
        try:
            token = self.token.read_text().strip()
        except OSError as error:
            raise NoDaemon(f"{self.token}: cannot be read ({error.strerror}); name the daemon's --state") from None
        headers = {"Authorization": f"Bearer {token}"}
        return {"base_url": url, "headers": headers, "timeout": timeout, "trust_env": False, "verify": False}

    def address(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.address_file.read_text())
        except (OSError, ValueError):
            raise NoDaemon(
                f"no daemon has been started on {self.path}: run `rollweave daemon start` first (or name its folder "
                "with --state)"
            ) from None
        return found
