"""A session: one process's work on a run. It starts the machinery, drives the pipeline and closes the books.

A run may take several sessions (`--resume`), and a session several lives: if the trainer's process dies, what it held
is gone, and everything is started again from the newest checkpoint, the same way as a resume.

Ctrl-C as a request: the first one asks for an orderly end, the second one is the usual Ctrl-C.

The heartbeat of a run: once a second it asks everybody what they wait for and has it written down.

It may not be held up by what it reports: an engine that does not answer in time is shown as it last was.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollweave.clock import Clock, Wait, run_wall
from rollweave.config.job import InlineRuntime, Job
from rollweave.engines.protocol import Engine, EngineStats
from rollweave.environments.protocol import MakeEnvironment
from rollweave.environments.registry import EnvironmentFactory
from rollweave.errors import WorkerDied, first_cause
from rollweave.observability.events import Emitter, Event, Recorder
from rollweave.observability.metrics import read_metrics
from rollweave.observability.report.page import write_report
from rollweave.observability.screen import Header
from rollweave.observability.status_board import StatusBoard
from rollweave.observability.summary import ExitReason, Summary, summarise, write_summary
from rollweave.observability.terminal import View
from rollweave.pipelines.assemble import Drive, Listeners, Machinery, assemble
from rollweave.pipelines.loop import Parts
from rollweave.pipelines.permits import MakePermits, alone
from rollweave.rewards.scorer import NamedReward
from rollweave.runs.folder import RunFolder
from rollweave.runs.logbook import Logbook
from rollweave.runs.resume import DriverState, Start, rewind
from rollweave.runtimes.blueprint import Blueprint
from rollweave.tasks import TaskSource
from rollweave.training.checkpoint import DriverFiles, newest


class interrupts:
    """While open, Ctrl-C calls this instead of tearing the process down; a second one is the usual Ctrl-C."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        with suppress(ValueError, RuntimeError):  # not in the main thread (a notebook): leave signals alone
            self._loop = asyncio.get_running_loop()
            self._loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)
        self._stop()

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError, RuntimeError):
            self._loop.remove_signal_handler(signal.SIGINT)


SECONDS = 1.0

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long an engine has to say what it has done."""


async def heartbeat(board: StatusBoard, machinery: Machinery, clock: Clock) -> None:
    """Keep the board up to date, until cancelled."""
    stats = [EngineStats() for _ in machinery.engines]
    while True:
        try:
            stats = await _ask(machinery.engines, stats)
            elsewhere = await machinery.waits()
            board.update([*clock.waiting(), *elsewhere], stats)
        except Exception:  # the boundary between a run and those who only look at it
            log.exception("status.json could not be written")
        await clock.sleep(SECONDS)


async def _ask(engines: Sequence[Engine], last: list[EngineStats]) -> list[EngineStats]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return [await engine.stats() for engine in engines]
    except (TimeoutError, WorkerDied):
        return last


WATCH_SECONDS = 0.5
"""How often the view is told what the run waits for."""

SLOW_SECONDS = 60.0
"""A wait longer than this is worth a line, though its deadline is further off."""

LIVES_PER_CHECKPOINT = 3
"""A trainer that dies that often after the same checkpoint would die again."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller hands over as Python objects instead of naming it in the file."""

    environments: MakeEnvironment | None = None
    rewards: tuple[NamedReward, ...] = ()


class Session:
    def __init__(
        self, job: Job, folder: RunFolder, given: Given, tasks: TaskSource, start: Start, turns: MakePermits = alone
    ) -> None:
        self.job = job
        self.folder = folder
        self.environments = given.environments or EnvironmentFactory.from_config(job.environment, Path())
        self.rewards = given.rewards
        self.tasks = tasks
        self.start = start
        self.turns = turns
        self.view = View()

    def run(self) -> tuple[ExitReason, BaseException | None]:
        """Everything that may fail. A failure comes back, to be raised once the books are closed."""
        lives: Counter[int] = Counter()
        try:
            blueprint = self._blueprint()
            while True:
                reason, failure = self._live(blueprint)
                if not (isinstance(failure, WorkerDied) and failure.worker == "trainer"):
                    return reason, failure
                self.start = rewind(self.folder, self.job)
                lives[self.start.version] += 1
                if lives[self.start.version] > LIVES_PER_CHECKPOINT:
                    return reason, failure
                self._say_where(f"the trainer died (its log: {self.folder.logs / 'trainer.log'})")
        except KeyboardInterrupt:
            return "interrupted", None
        except Exception as error:  # the run's boundary: whatever it is, the folder says how the run ended
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

    # ----------------------------------------------------------------------------------------------- one life

    def _live(self, blueprint: Blueprint) -> tuple[ExitReason, BaseException | None]:
        try:
            return run_wall(lambda clock: self._train(blueprint, clock)), None
        except BaseExceptionGroup as group:
            return "failed", first_cause(group)
        except Exception as error:  # as in `run`: the next life, or the caller, decides what it means
            return "failed", error

    def _blueprint(self) -> Blueprint:
        """Make or find the policy, and teach a new one the format."""
        from rollweave.policies.start import start_policy

        rows = read_metrics(self.folder.path).rows if self.start.resumed else []
        self.view.start(self._header(), rows)
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
        alpha = self.job.alpha if self.job.pipeline.type == "rollart" else None
        return Header(self.job.name, self.job.pipeline.type, where, self.job.model.type, self.job.training.steps, alpha)

    async def _train(self, blueprint: Blueprint, clock: Clock) -> ExitReason:
        from rollweave.policies.chat import ChatFormat

        chat = ChatFormat.of(blueprint.policy)
        with Logbook(self.folder, self.job.logging, self.start, clock.now, chat.tokenizer.decode) as log:
            listeners = Listeners(
                log.recorder,
                on_row=[lambda step, row: self.view.step(log.row(step, row))],
                on_trajectories=[log.trajectories],
            )
            log.recorder.sinks.append(self._announce)
            self._record_start(log.recorder)
            async with start_machinery(blueprint, clock, self.folder.logs, log.recorder) as machinery:
                machinery.turns = self.turns(clock)
                parts = assemble(
                    self.job, machinery, self.tasks, chat.stop_tokens, self.folder.checkpoints, clock, listeners
                )
                parts.driver_state = lambda: self._driver_state(parts, log)
                if self.start.checkpoint is not None:
                    parts.journal.resume(self.start.driver.elapsed, *log.earlier())
                    await parts.restore(self.start.checkpoint, self.start.driver.scheduler)
                reason = await self._drive(parts, machinery, clock, log.recorder)
                log.recorder.emit("run.end", reason=reason)
                return reason

    def _driver_state(self, parts: Parts, log: Logbook) -> DriverFiles:
        scheduler = parts.scheduler.state(parts.version)
        return DriverState(scheduler, log.elapsed(), log.marks(), self.job.model_dump(mode="json")).dump()

    def _announce(self, event: Event) -> None:
        """What somebody who watches should know of."""
        if event.name == "worker.died":
            self.view.note(f"{event.data['worker']} died; its log: {self.folder.logs}/{event.data['worker']}.log")
        elif event.name == "worker.restarted":
            self.view.note(f"{event.data['worker']} works again, {event.data['seconds']:.1f} s after its death")

    def _record_start(self, recorder: Emitter) -> None:
        start = self.start
        if start.checkpoint is None:
            recorder.emit("run.start", job=self.job.name, seed=self.job.seed)
        if start.resumed:
            place = start.checkpoint.name if start.checkpoint is not None else ""
            recorder.emit("run.resume", version=start.version, checkpoint=place, changed=start.changed)

    # ----------------------------------------------------------------------------------------------- the drive

    async def _drive(self, parts: Parts, machinery: Machinery, clock: Clock, recorder: Recorder) -> ExitReason:
        """Run the pipeline until it ends or the user has seen enough; whichever way, a checkpoint is left."""
        board = StatusBoard(
            self.folder.path,
            self._header(),
            parts.journal.accountant,
            lambda: parts.scheduler.ledger.summary(),
            recorder.now,
        )
        drive = Drive(self.job, parts, recorder)
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(heartbeat(board, machinery, clock))
            watching = tasks.create_task(self._watch(clock, recorder))
            with interrupts(lambda: self._stop(drive)):
                await drive.run()
            watching.cancel()
            beating.cancel()
        if parts.stopping:
            return "interrupted"
        return "completed" if parts.version >= self.job.training.steps else "target"

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


def start_machinery(
    blueprint: Blueprint, clock: Clock, logs: Path, recorder: Emitter
) -> AbstractAsyncContextManager[Machinery]:
    """The runtime the job asks for."""
    runtime = blueprint.job.runtime
    if isinstance(runtime, InlineRuntime):
        from rollweave.runtimes.inline import start_inline, use_threads

        use_threads(runtime)
        return start_inline(blueprint, clock)
    from rollweave.runtimes.ray import start_ray

    return start_ray(blueprint, runtime, clock, logs, recorder)
