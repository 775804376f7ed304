"""The profiler measures once what an iteration of a job takes when every answer is as long as the job allows.

    python -m rollweave.mux.daemon.profiler JOB.yaml      started by the daemon for a job without a profile

It is a process of its own with a policy that is thrown away: nothing of it can leak into the run. The policy need not
be trained before, because only its length ends an answer. The first iteration also makes what is made once (buffers,
lazy imports); the second one counts.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rollweave.clock import Clock, run_wall
from rollweave.config.job import InlineRuntime, Job, TinyModel
from rollweave.config.load import load_job
from rollweave.environments.registry import EnvironmentFactory, source
from rollweave.errors import RollweaveError, first_cause
from rollweave.fleet.fleet import Fleet
from rollweave.mux.daemon.permit_client import DaemonPermits
from rollweave.mux.daemon.records import PhaseTimes, say_failed
from rollweave.mux.permits import StalePermit
from rollweave.observability.events import Recorder
from rollweave.observability.memory import resident_mb
from rollweave.pipelines.assemble import assemble
from rollweave.pipelines.permits import PermitSource, SharedPool
from rollweave.rollout.dispatcher import Dispatcher
from rollweave.runtimes.blueprint import Blueprint
from rollweave.runtimes.inline import start_inline, use_threads

ITERATIONS = 2


@dataclass(slots=True)
class Stopwatch(PermitSource):
    """Times permits: from the moment one is granted to the moment the next is asked for.

    It never hands back nodes early, because a worst case does not count on tails.
    """

    permits: PermitSource
    clock: Clock
    phases: list[tuple[SharedPool, float]] = field(default_factory=list)
    _open: tuple[SharedPool, float] | None = None

    async def take(self, pool: SharedPool, step: int, tokens: int = 0, partly: bool = False) -> int | None:
        self.stop()
        await self.permits.take(pool, step, tokens)
        self._open = (pool, self.clock.now())
        return None

    def stop(self) -> None:
        if self._open is not None:
            pool, since = self._open
            self.phases.append((pool, self.clock.now() - since))
            self._open = None

    def measured(self) -> PhaseTimes:
        """The times of the last iteration."""
        last = dict(self.phases)
        return PhaseTimes(last["rollout"], last["train"])


async def measure(job: Job, permits: PermitSource, workplace: Path, clock: Clock) -> PhaseTimes:
    """Run two worst-case iterations on the real engine and trainer, and return the times of the second."""
    from rollweave.policies.prepare import prepare

    assert isinstance(job.runtime, InlineRuntime)
    use_threads(job.runtime)
    policy = prepare(job.model, job.seed, workplace / "policy")
    blueprint = Blueprint(job, policy, EnvironmentFactory.from_config(job.environment, Path()))
    tasks = source(job.environment, job.seed, Path())
    control = job.control.model_copy(update={"steps": ITERATIONS})
    fleet = Fleet()
    dispatcher = Dispatcher.of(job.rollout, fleet)
    async with start_inline(blueprint, fleet, dispatcher, clock) as trainer:
        watch, recorder = Stopwatch(permits, clock), Recorder(clock.now)
        # No token ends an answer.
        drive = assemble(control, fleet, dispatcher, trainer, tasks, (), workplace, clock, recorder, permits=watch)
        await drive.advance()
        watch.stop()
    return watch.measured()


def worst_case(job: Job) -> Job:
    """The job with the longest answers, without what it does beside its iterations."""
    model = job.model
    if isinstance(model, TinyModel):
        model = model.model_copy(update={"warm_start": model.warm_start.model_copy(update={"steps": 0})})
    sampling = job.rollout.sampling.model_copy(update={"stop": ()})
    return job.model_copy(
        update={
            "model": model,
            "rollout": job.rollout.model_copy(update={"sampling": sampling, "filter": "none"}),
            "evaluation": job.evaluation.model_copy(update={"every": 0, "target": None}),
            "checkpoint": job.checkpoint.model_copy(update={"every": 0}),
        }
    )


def main(arguments: list[str]) -> None:
    permits = DaemonPermits.of_environment()
    permits.start()
    try:
        job = worst_case(load_job(Path(arguments[0])))
        with tempfile.TemporaryDirectory(prefix="rollweave-profile-") as folder:
            measured = run_wall(lambda clock: measure(job, permits.on(clock), Path(folder), clock))
    except Exception as error:  # raised again; the daemon has to hear first what would fail again
        cause = first_cause(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(cause, RollweaveError) and not isinstance(cause, StalePermit):
            say_failed(permits.folder.run(permits.job), str(cause))  # it would fail again
        raise
    permits.tell_profile(measured.t_roll, measured.t_train, resident_mb() / 1e3)


if __name__ == "__main__":
    main(sys.argv[1:])
