"""A job from its file to its end: make the policy, start the machinery, run the pipeline, leave a report.

`train_job` is what `rollweave train` and `rollweave.train` call.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from rollweave.clock import Clock, Wait, run_wall
from rollweave.cluster.blueprint import Blueprint
from rollweave.config.job import InlineRuntime, Job
from rollweave.environments.protocol import MakeEnvironment
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import RunFolderError, first_cause
from rollweave.observability.events import EventFile, Recorder
from rollweave.observability.metrics import MetricsWriter, read_metrics
from rollweave.observability.report import write_report
from rollweave.observability.screen import Header
from rollweave.observability.summary import ExitReason, Summary, summarise, write_summary
from rollweave.observability.terminal import View
from rollweave.observability.transcripts import TranscriptWriter, spread
from rollweave.pipelines.assemble import Listeners, Machinery, assemble, pipeline
from rollweave.pipelines.parts import Parts
from rollweave.preflight import check_before_start
from rollweave.rewards.function import NamedReward
from rollweave.runfolder import RunFolder
from rollweave.tasks import TaskSource
from rollweave.training.checkpoint import newest

WATCH_SECONDS = 0.5
"""How often the view is told what the run waits for."""

SLOW_SECONDS = 60.0
"""A wait longer than this is worth a line, though its deadline is further off."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller hands over as Python objects instead of naming it in the file."""

    environments: MakeEnvironment | None = None
    rewards: tuple[NamedReward, ...] = ()


def train_job(job: Job, out: Path | None = None, given: Given = Given()) -> Path:  # noqa: B008 (frozen)
    """Train a job to its end; returns the run folder."""
    folder = RunFolder.choose(job, out)
    tasks = source(job.environment, job.seed, Path())
    check_before_start(job, environment_given=given.environments is not None)
    folder.create(job)
    session = _Session(job, folder, given, tasks)
    reason, failure = session.run()
    with suppress(RunFolderError) if failure else nullcontext():  # a full disk: what it broke first says more
        summary = session.finish(reason, failure)
    if failure is not None:
        raise failure
    session.say_goodbye(summary)
    return folder.path


class _Session:
    """One run: its folder, its view, its writers."""

    def __init__(self, job: Job, folder: RunFolder, given: Given, tasks: TaskSource) -> None:
        self.job = job
        self.folder = folder
        self.environments = given.environments or EnvironmentFactory.from_config(job.environment, Path())
        self.rewards = given.rewards
        self.tasks = tasks
        self.view = View()
        self.metrics = MetricsWriter(folder.path, tensorboard=job.logging.tensorboard)

    def run(self) -> tuple[ExitReason, BaseException | None]:
        """Everything that may fail. A failure comes back, to be raised once the books are closed."""
        try:
            blueprint = self._blueprint()
            return run_wall(lambda clock: self._train(blueprint, clock)), None
        except KeyboardInterrupt:
            return "interrupted", None
        except BaseExceptionGroup as group:
            return "failed", first_cause(group)
        except Exception as error:  # the run's boundary: whatever it is, the folder says how the run ended
            return "failed", error
        finally:
            self.view.stop()

    def finish(self, reason: ExitReason, failure: BaseException | None) -> Summary:
        self.metrics.close()
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

    def _blueprint(self) -> Blueprint:
        """Make or find the policy, and teach a new one the format."""
        from rollweave.policies.start import start_policy

        self.view.start(self._header())
        policy = start_policy(self.job, self.folder.policy, self.environments, self.tasks, self.view.progress)
        return Blueprint(self.job, policy, self.environments, self.rewards)

    def _header(self) -> Header:
        runtime = self.job.runtime
        where = runtime.type if isinstance(runtime, InlineRuntime) else f"{runtime.type} ({runtime.placement})"
        alpha = self.job.alpha if self.job.pipeline.type == "rollart" else None
        return Header(self.job.name, self.job.pipeline.type, where, self.job.model.type, self.job.training.steps, alpha)

    async def _train(self, blueprint: Blueprint, clock: Clock) -> ExitReason:
        from rollweave.policies.chat import ChatFormat

        chat = ChatFormat.of(blueprint.policy)
        transcripts = TranscriptWriter(self.folder.path, chat.tokenizer.decode)
        keep = self.job.logging.transcripts_per_step
        events = EventFile(self.folder.path / "events.jsonl")
        began = clock.now()
        recorder = Recorder(lambda: clock.now() - began, [events])
        listeners = Listeners(
            recorder,
            on_row=[lambda step, row: self.view.step(self.metrics.write(step, row))],
            on_trajectories=[lambda step, all_of_them: transcripts.write(step, spread(all_of_them, keep))],
        )
        recorder.emit("run.start", job=self.job.name, seed=self.job.seed)
        try:
            async with start_machinery(blueprint, clock, self.folder.logs) as machinery:
                parts = assemble(
                    self.job, machinery, self.tasks, chat.stop_tokens, self.folder.checkpoints, clock, listeners
                )
                reason = await self._drive(parts, clock, recorder)
                recorder.emit("run.end", reason=reason)
                return reason
        finally:
            events.flush()
            transcripts.close()

    async def _drive(self, parts: Parts, clock: Clock, recorder: Recorder) -> ExitReason:
        """Run the pipeline until it ends or the user has seen enough; either way a checkpoint is left."""
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(clock, recorder))
            pipeline = tasks.create_task(_run_pipeline(self.job, parts))
            with _interrupts(lambda: self._stop(parts, pipeline)):
                await asyncio.wait([pipeline])
            watching.cancel()
        await parts.save_checkpoint()
        if parts.stopping:
            return "interrupted"
        return "completed" if parts.version >= self.job.training.steps else "target"

    def _stop(self, parts: Parts, pipeline: asyncio.Task[None]) -> None:
        if parts.stop():
            pipeline.cancel()
        self.view.note("interrupted: saving a checkpoint (press Ctrl-C again to leave without)")

    async def _watch(self, clock: Clock, recorder: Recorder) -> None:
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


async def _run_pipeline(job: Job, parts: Parts) -> None:
    await pipeline(job)(parts, 0, job.training.steps)


class _interrupts:
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


def start_machinery(blueprint: Blueprint, clock: Clock, logs: Path) -> AbstractAsyncContextManager[Machinery]:
    """The runtime the job asks for."""
    runtime = blueprint.job.runtime
    if isinstance(runtime, InlineRuntime):
        from rollweave.cluster.inline import start_inline, use_threads

        use_threads(runtime)
        return start_inline(blueprint, clock)
    from rollweave.cluster.ray import start_ray

    return start_ray(blueprint, runtime, clock, logs)
