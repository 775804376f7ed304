"""A session: one process's work on a run. It starts the workers, drives the pipeline and closes the books.

A run may take several sessions (`--resume`). If the trainer's process dies, the session goes on: another trainer loads
the newest checkpoint, and the control plane goes back to it, while engines and hosts live on (`Loop.go_back`).

The first Ctrl-C asks for an orderly end, the second one is the usual Ctrl-C. Once a second a heartbeat asks engines and
hosts what they do and what they wait for, and writes it into status.json; an engine that does not answer in time is
shown as it last was.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rollweave.clock import Clock, Wait, run_wall
from rollweave.config.job import InlineRuntime, Job
from rollweave.config.load import loss_in_words, model_in_words
from rollweave.environments.protocol import MakeEnvironment
from rollweave.errors import first_cause
from rollweave.fleet.fleet import Fleet, FleetStats
from rollweave.observability.events import Emitter, Event, Recorder
from rollweave.observability.metrics import read_metrics
from rollweave.observability.places import Places
from rollweave.observability.report.page import write_report
from rollweave.observability.screen import Header
from rollweave.observability.status_board import StatusBoard
from rollweave.observability.summary import ExitReason, Summary, summarise, write_summary
from rollweave.observability.terminal import View
from rollweave.pipelines.assemble import Drive, assemble
from rollweave.pipelines.checkpoints import DriverState, Kept
from rollweave.pipelines.loop import Loop
from rollweave.pipelines.permits import MakePermits
from rollweave.rewards.scorer import NamedReward
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runs.folder import RunFolder
from rollweave.runs.logbook import Logbook
from rollweave.runs.resume import STEP_LOGS, Start, rewind
from rollweave.runtimes.blueprint import Blueprint, start_runtime
from rollweave.tasks import TaskSource
from rollweave.training.checkpoint import newest


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Inside, Ctrl-C calls `stop` instead of tearing the process down; a second one is the usual Ctrl-C."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop()

    with suppress(ValueError, RuntimeError):  # not in the main thread (a notebook): leave signals alone
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


HEARTBEAT_SECONDS = 1.0

ANSWER_SECONDS = 2.0
"""How long an engine has to say what it has done."""

log = logging.getLogger(__name__)


async def heartbeat(board: StatusBoard, fleet: Fleet, dispatcher: Dispatcher, clock: Clock) -> None:
    """Keep the board up to date, until cancelled."""
    while True:
        try:
            engines = await _ask(fleet)
            elsewhere = await dispatcher.ask_waits()
            done = engines.totals
            spent = {"generate": done.busy_seconds - done.recompute_seconds, "recompute": done.recompute_seconds}
            board.update([*clock.waiting(), *elsewhere], len(engines.engines), spent)
        except Exception:  # the boundary between a run and those who only look at it
            log.exception("status.json could not be written")
        await clock.sleep(HEARTBEAT_SECONDS)


async def _ask(fleet: Fleet) -> FleetStats:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await fleet.look()
    except TimeoutError:
        return fleet.last_seen()


WATCH_SECONDS = 0.5
"""How often the view is told what the run waits for."""

SLOW_SECONDS = 60.0
"""A wait longer than this is worth a line, though its deadline is further off."""


@dataclass(slots=True)
class Session:
    job: Job
    folder: RunFolder
    tasks: TaskSource
    start: Start
    environments: MakeEnvironment
    rewards: tuple[NamedReward, ...] = ()
    """Python functions of the caller, beside those that the job names."""
    permits: MakePermits | None = None
    view: View = field(default_factory=View)

    def run(self) -> tuple[ExitReason, BaseException | None]:
        """Train to the end, and say how it ended. A failure is returned, to be raised once the books are closed."""
        try:
            blueprint = self._blueprint()
            return run_wall(lambda clock: self._train(blueprint, clock)), None
        except KeyboardInterrupt:
            return "interrupted", None
        except BaseExceptionGroup as group:
            return "failed", first_cause(group)
        except Exception as error:  # the run's boundary: the folder says how the run ended, after any error
            return "failed", error
        finally:
            self.view.stop()

    def finish(self, reason: ExitReason, failure: BaseException | None) -> Summary:
        rows = read_metrics(self.folder.path).rows
        summary = summarise(self.job.name, rows, reason, self.job.evaluation.target, str(failure or ""))
        write_summary(self.folder.path, summary)
        if rows:
            write_report(self.folder.path, self.folder.report)
        return summary

    def say_goodbye(self, summary: Summary) -> None:
        self.view.end(summary)
        if self.folder.report.exists():
            self.view.note(f"  report      {self.folder.report}")
        checkpoint = newest(self.folder.checkpoints)
        self.view.note(f"  checkpoint  {checkpoint or 'none: the run ended before there was anything to save'}")
        if summary.exit_reason == "interrupted":
            self.view.note(f"  go on with  rollweave train --resume {self.folder.path}")

    # ----------------------------------------------------------------------------------------------- its parts

    def _blueprint(self) -> Blueprint:
        """Make or find the policy, and teach a new one the format."""
        from rollweave.policies.start import start_policy

        rows = read_metrics(self.folder.path).rows if self.start.resumed else []
        self.view.start(self._header(), rows)
        self.view.note(f"loss: {loss_in_words(self.job)}")
        if self.start.resumed:
            self._say_where("resumed")
        policy = start_policy(self.job, self.folder.policy, self.environments, self.tasks, self.view.progress)
        return Blueprint(self.job, policy, self.environments, self.rewards)

    def _say_where(self, why: str) -> None:
        for note in self.start.notes:
            self.view.note(note)
        self.view.note(f"{why}: going on from {self.start}, step {self.start.version} of {self.job.training.steps}")

    def _header(self) -> Header:
        runtime = self.job.runtime
        where = runtime.type if isinstance(runtime, InlineRuntime) else f"{runtime.type} ({runtime.placement})"
        alpha = self.job.pipeline.alpha if self.job.pipeline.type == "rollart" else None
        model = model_in_words(self.job.model)
        return Header(self.job.name, self.job.pipeline.type, where, model, self.job.training.steps, alpha)

    async def _train(self, blueprint: Blueprint, clock: Clock) -> ExitReason:
        from rollweave.policies.chat import ChatFormat

        chat = ChatFormat.of(blueprint.policy)
        with closing(Logbook(self.folder, self.job.logging, self.start, clock.now, chat.tokenizer.decode)) as log:
            places = Places()
            log.recorder.sinks += [self._announce, places]
            self._record_start(log.recorder)
            fleet = Fleet()
            dispatcher = Dispatcher.of(self.job.rollout, fleet)
            logs = self.folder.logs
            async with start_runtime(blueprint, fleet, dispatcher, clock, logs, log.recorder) as trainer:
                drive = assemble(
                    self.job.control,
                    fleet,
                    dispatcher,
                    trainer,
                    self.tasks,
                    chat.stop_tokens,
                    self.folder.checkpoints,
                    clock,
                    log.recorder,
                    permits=self.permits(clock) if self.permits is not None else None,
                    on_row=[lambda step, row: self.view.step(log.metrics.write(step, row))],
                    on_trajectories=[log.trajectories],
                )
                await self._restore(drive.loop, log)
                board = self._board(drive.loop, log.recorder, places)
                beating = heartbeat(board, fleet, dispatcher, clock)
                reason = await self._drive(drive, beating, clock, log.recorder)
                log.recorder.emit("run.end", reason=reason)
                return reason

    async def _restore(self, loop: Loop, log: Logbook) -> None:
        """Say what a checkpoint is to keep, and go on from one if there is one."""
        job = self.job.model_dump(mode="json")
        loop.checkpoints.describe = lambda scheduler: DriverState(scheduler, log.elapsed(), log.marks(), job)
        loop.checkpoints.rewind = lambda: self._rewind(log)
        if self.start.checkpoint is not None:
            loop.journal.resume(self.start.driver.elapsed, *log.earlier())
            await loop.checkpoints.restore(self.start.checkpoint, self.start.driver.scheduler)

    async def _rewind(self, log: Logbook) -> Kept:
        """The trainer has died: where the run goes back to. Events go on: they tell of that, too."""
        self.start = await asyncio.to_thread(rewind, self.folder, self.job, cut=STEP_LOGS)
        log.metrics.go_back(self.start.version)
        self._say_where(f"the trainer died (its log: {self.folder.logs / 'trainer.log'})")
        return Kept(self.start.checkpoint, self.start.driver.scheduler)

    def _board(self, loop: Loop, recorder: Recorder, places: Places) -> StatusBoard:
        accountant, ledger = loop.journal.accountant, loop.scheduler.ledger
        return StatusBoard(
            self.folder.path, self._header(), accountant, ledger.summary, recorder.now, places=places.snapshot
        )

    def _announce(self, event: Event) -> None:
        """Shows a person who watches that a worker died or works again, or that a machine does not answer."""
        data = event.data
        match event.name:
            case "worker.died":
                self.view.note(f"{data['worker']} died; its log: {self.folder.logs}/{data['worker']}.log")
            case "worker.restarted":
                self.view.note(f"{data['worker']} works again, {data['seconds']:.1f} s after its death")
            case "worker.bound" if not data["preferred"]:
                self.view.note(f"{data['worker']}: {data['reason']}")
            case "node.silent":
                self.view.note(f"node {data['address']} has not answered for {data['seconds']:.0f} s: given up")
            case "node.back":
                self.view.note(f"node {data['address']} answers again")
            case "driver.cut_off":
                self.view.note(f"none of {data['nodes']} other nodes answers: waiting for the network")
            case "driver.back":
                self.view.note(f"the other nodes answer again, after {data['seconds']:.0f} s")

    def _record_start(self, recorder: Emitter) -> None:
        start = self.start
        if start.checkpoint is None:
            recorder.emit("run.start", job=self.job.name, seed=self.job.seed)
        if start.resumed:
            place = start.checkpoint.name if start.checkpoint is not None else ""
            recorder.emit("run.resume", version=start.version, checkpoint=place, changed=start.changed)

    # ----------------------------------------------------------------------------------------------- the drive

    async def _drive(
        self, drive: Drive, beating: Coroutine[Any, Any, None], clock: Clock, recorder: Emitter
    ) -> ExitReason:
        """Run the pipeline until it ends or the user has seen enough; whichever way, a checkpoint is left."""
        async with asyncio.TaskGroup() as tasks:
            observers = [tasks.create_task(beating), tasks.create_task(self._watch(clock, recorder))]
            with interrupts(lambda: self._stop(drive)):
                await drive.run()
            for observer in observers:
                observer.cancel()
        state = drive.loop.state
        if state.stopping:
            return "interrupted"
        return "completed" if state.version >= self.job.training.steps else "target"

    def _stop(self, drive: Drive) -> None:
        drive.stop()
        self.view.note("interrupted: saving a checkpoint (press Ctrl-C again to leave without)")

    async def _watch(self, clock: Clock, recorder: Emitter) -> None:
        """Show what the run waits for, and speak up about waits that take long."""
        reported: set[Wait] = set()
        while True:
            waits = clock.waits()
            reported &= set(waits)
            for wait in waits:
                if clock.now() - wait.since > SLOW_SECONDS and wait not in reported:
                    reported.add(wait)
                    recorder.emit("wait.slow", who=wait.who, waits_for=wait.what, seconds=clock.now() - wait.since)
                    self.view.note(f"slow: {wait}")
            ours = [wait for wait in waits if not wait.who.startswith("episode")]
            self.view.waiting(str(ours[0]) if ours else "")
            await clock.sleep(WATCH_SECONDS)
