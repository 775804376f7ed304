"""The daemon: one process that serves the HTTP interface, and starts and ends processes as the controller wants it.

It may be killed at any moment. Its jobs are processes of their own and go on; the next daemon on the same folder finds
them by process number and start time, watches those that live and counts the others as killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import uvicorn

from rollweave.clock import Clock, run_wall
from rollweave.errors import RollweaveError, first_cause
from rollweave.mux.daemon.admission import Admission
from rollweave.mux.daemon.controller import Controller
from rollweave.mux.daemon.permit_client import FOLDER, JOB, LIFE
from rollweave.mux.daemon.records import JobRecord, forget_ending, how_it_ended
from rollweave.mux.daemon.server import Desk, make_app
from rollweave.mux.daemon.store import StateFolder, Store
from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.policy import MuxPolicy
from rollweave.runtimes import machine
from rollweave.runtimes.machine import Process

LOOK_SECONDS = 1.0
"""How often it looks for starts and permits that take too long; it is told of everything else."""

GOODBYE_SECONDS = 60.0
"""Seconds that jobs have to save a checkpoint when the daemon stops them."""


class AddressTaken(RollweaveError):
    pass


def run_daemon(
    folder: StateFolder, host: str, port: int, rollout_nodes: int, train_nodes: int, policy: MuxPolicy
) -> None:
    """Serve until told to stop."""
    with machine.only_one(folder.path):
        token = machine.read_or_make_token(folder.token)
        admission = Admission(Scheduler(policy), rollout_nodes, train_nodes, machine.host_gb())
        store = Store(folder.database)
        controller = Controller(store, admission, machine.wall_time)
        for sentence in controller.set_aside.values():
            print(sentence, flush=True)
        with _listen(host, port) as listener, closing(store):
            try:
                run_wall(lambda clock: Daemon(controller, folder, clock).run(listener, token))
            except BaseExceptionGroup as group:
                raise first_cause(group) from group


class Daemon:
    def __init__(self, controller: Controller, folder: StateFolder, clock: Clock) -> None:
        self._controller = controller
        self._folder = folder
        self._clock = clock
        self._look = asyncio.Event()
        self._desk = Desk(controller, folder, tuple(sorted(os.sched_getaffinity(0))), clock)
        self._desk.on_change = self._look.set

    async def run(self, listener: socket.socket, token: str) -> None:
        server = _Server(uvicorn.Config(make_app(self._desk, token), log_level="warning", timeout_graceful_shutdown=1))
        for number in (signal.SIGINT, signal.SIGTERM):  # they end the daemon alone; its jobs wait for the next one
            asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
        host, port = listener.getsockname()[:2]
        self._folder.publish(f"http://{host}:{port}")
        print(f"listening on http://{host}:{port}, state in {self._folder.path}", flush=True)
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(self._supervise(server), name="supervisor")
            await server.serve(sockets=[listener])
            supervising.cancel()

    # -------------------------------------------------------------------------------------------- processes

    async def _supervise(self, server: uvicorn.Server) -> None:
        self._controller.place_waiting()
        async with asyncio.TaskGroup() as watchers:
            for record in self._controller.jobs.values():
                if record.process is not None:
                    watchers.create_task(self._watch(record.id, record.process), name=f"watch {record.id}")
            while not (self._desk.stopping.is_set() or self._desk.leaving.is_set()):
                self._look.clear()
                self._make_it_so(watchers)
                await self._wait_for_news(LOOK_SECONDS)
            if self._desk.stopping.is_set():
                await self._end_jobs()
            server.should_exit = True

    def _make_it_so(self, watchers: asyncio.TaskGroup) -> None:
        if self._controller.tick():
            self._desk.changed()
        for record in self._controller.to_end():
            if record.process is not None:
                machine.kill(record.process)
        for record in self._controller.to_start():
            process = self._start(record)
            watchers.create_task(self._watch(record.id, process), name=f"watch {record.id}")

    def _start(self, record: JobRecord) -> Process:
        life = self._controller.starting(record.id)
        folder = self._folder.job(record.id)
        threads = str(max(record.n_roll, record.n_train))
        environment = {FOLDER: str(self._folder.path), JOB: record.id, LIFE: str(life), "OMP_NUM_THREADS": threads}
        forget_ending(self._folder.run(record.id))
        process = machine.start(_command(record, folder), environment, folder / "log")
        self._controller.started(record.id, process)
        return process

    async def _watch(self, job: str, process: Process) -> None:
        await machine.gone(process)
        if self._desk.stopping.is_set():
            self._controller.stopped(job)
        else:
            self._controller.exited(job, *how_it_ended(self._folder.run(job), self._folder.job(job) / "log"))
        self._desk.changed()

    async def _end_jobs(self) -> None:
        """Interrupt the jobs, so that they save a checkpoint; kill those that do not end in time."""
        for end in (machine.interrupt, machine.kill):
            for process in self._processes():
                end(process)
            until = self._clock.now() + GOODBYE_SECONDS
            while self._processes() and self._clock.now() < until:
                self._look.clear()
                await self._wait_for_news(0.5)

    def _processes(self) -> list[Process]:
        return [record.process for record in self._controller.jobs.values() if record.process is not None]

    async def _wait_for_news(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look.wait()


class _Server(uvicorn.Server):
    """A server that leaves signals to the daemon."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _command(record: JobRecord, folder: Path) -> list[str]:
    job = str(folder / "job.yaml")
    if record.state == "profiling":
        return [sys.executable, "-m", "rollweave.mux.daemon.profiler", job]
    return [sys.executable, "-m", "rollweave.cli.main", "train", job, "--out", str(folder / "run"), "--resume"]


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise AddressTaken(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port, or 0 for any free one"
        ) from None
