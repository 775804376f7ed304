"""One replay from its names: trace, policy, workload, seed. What `rollweave mux simulate` and the benches call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollweave.errors import ConfigError
from rollweave.mux.baselines import papers_comparison, setup
from rollweave.mux.model.job import MuxJob
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.simulation.jobs import JobMix, draw_jobs
from rollweave.mux.simulation.phases import PhaseReplay
from rollweave.mux.simulation.replay import Failure, Replay, ReplayResult
from rollweave.mux.simulation.trace import TraceJob
from rollweave.seeds import generator


@dataclass(frozen=True, slots=True)
class TraceScenario:
    """Everything that decides how a replay goes, but for the policy."""

    trace: Sequence[TraceJob]
    workload: JobMix = field(default_factory=JobMix)
    failures: float = 0.0
    """Share of jobs that are killed once, somewhere in their life, and submitted again an hour later."""
    limit: float = math.inf
    """Nodes per pool."""
    host_gb: float = math.inf
    """Host memory of a node; infinite: enough for every job."""
    phases: bool = False
    """Every phase by itself instead of mean rates: slower, and the truth about what a change of a group does."""

    def __post_init__(self) -> None:
        if not self.host_gb > 0:
            raise ConfigError(f"host_gb={self.host_gb}: the host memory of a node must be above 0 GB")


def make_scenario(
    trace: Sequence[TraceJob],
    jobs: str = "mixed",
    sizes: str = "one",
    host_gb: float = 0.0,
    failures: float = 0.0,
    phases: bool = False,
) -> TraceScenario:
    """The scenario that the options of `rollweave mux simulate` describe; `host_gb` 0 means: enough for every job."""
    workload = JobMix(jobs.lower(), sizes, memory=host_gb > 0)
    return TraceScenario(trace, workload, failures, host_gb=host_gb or math.inf, phases=phases)


def simulate(
    scenario: TraceScenario, policy: str | MuxPolicy, seed: int, stopwatch: Callable[[], float] = float
) -> ReplayResult:
    """Replay under a policy: one that has a name, or one with switches of your own choice."""
    chosen = setup(policy, seed)
    for pool in (chosen.state.rollout, chosen.state.train):
        pool.limit, pool.host_gb = scenario.limit, scenario.host_gb
    jobs = [chosen.prepare(job) for job in draw_jobs(scenario.trace, scenario.workload, seed)]
    _check_memory(jobs, scenario.host_gb)
    arrivals = [(line.submit_s, job) for line, job in zip(scenario.trace, jobs, strict=True)]
    replay = (PhaseReplay if scenario.phases else Replay)(chosen.decider, chosen.state, stopwatch)
    return replay.run(arrivals, draw_failures(scenario, seed))


def _check_memory(jobs: Sequence[MuxJob], host_gb: float) -> None:
    """Refuse a job that no node could hold, even alone."""
    needed, job = max((max(job.profile.mem_roll, job.profile.mem_train), job.id) for job in jobs)
    if needed > host_gb:
        raise ConfigError(
            f"host_gb={host_gb:g}: job {job} keeps {needed:g} GB on each of its nodes; give a node at least as much"
        )


def bound(scenario: TraceScenario, seed: int) -> float:
    """What no policy could go below on the same trace and jobs."""
    papers = papers_comparison()
    if papers is None:
        raise ConfigError("the lower bound comes with the package rollweave_experiments, which is not installed")
    jobs = draw_jobs(scenario.trace, scenario.workload, seed)
    return float(papers.lower_bound([(line.submit_s, job) for line, job in zip(scenario.trace, jobs, strict=True)]))


def draw_failures(scenario: TraceScenario, seed: int) -> list[Failure]:
    failures = []
    for number, line in enumerate(scenario.trace):
        draw = generator(seed, "mux", "failure", number)
        if draw.random() < scenario.failures:
            at = line.submit_s + draw.random() * line.duration_s
            failures.append(Failure(f"{number}", at, at + 3600))
    return failures
