"""Runs a few small steps of a job at learning rate 0, to see whether it trains the model that its engines sample from.

Nothing is learnt, so nothing may move: every version has the same checksum, wherever it is held; the log-probs that the
engine kept and those that the trainer computes agree to rounding, on stale tokens too; and the ratio between them is 1.
An error in the transfer of weights, in the sampling transform or in either forward pass shows here, in a minute, and
not as a learning curve that bends down after a day.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollweave.config.job import InlineRuntime, Job, TinyModel
from rollweave.errors import RollweaveError
from rollweave.observability.events import read_events
from rollweave.observability.metrics import read_metrics
from rollweave.runs.doctor import Finding
from rollweave.runs.train import train_job

STEPS, GROUPS, MEMBERS = 4, 4, 4
"""At most; a job that is smaller stays as it is."""

MEAN_GAP = 1e-4
MAX_GAP = 5e-3
"""In nats. What float32 rounding makes of two programs that add in another order, with room to spare (a tiny model has
2e-7 and 1e-6); a wrong transform or stale weights make a hundred times more."""

RATIO_GAP = 1e-3


@dataclass(frozen=True, slots=True)
class VersionChecksums:
    """The checksums of one version: as the trainer pushed it, as each engine found it in the store."""

    version: int
    trainer: str
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SelfTestStep:
    step: int
    gap_mean: float | None
    """None: no token of the version being trained in the batch."""
    gap_max: float | None
    ratio_p50: float
    ratio_p99: float
    staleness: int


@dataclass(frozen=True, slots=True)
class SelfTest:
    versions: list[VersionChecksums] = field(default_factory=list)
    steps: list[SelfTestStep] = field(default_factory=list)
    checks: list[Finding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.status == "ok" for check in self.checks)

    def report(self) -> dict[str, Any]:
        """For a program."""
        return {"healthy": self.passed, **asdict(self)}


def selftest(job: Job) -> SelfTest:
    """Run a small version of the job that learns nothing, in a folder that is thrown away, and judge what it left."""
    small = shrink(job)
    with tempfile.TemporaryDirectory(prefix="rollweave-selftest-") as folder:
        run, failure = Path(folder) / "run", ""
        try:
            train_job(small, run)
        except RollweaveError as error:  # a programming error keeps its traceback
            failure = str(error)
        versions, steps = _versions(run), _steps(run)
    ended = check_run(failure, len(steps), small.training.steps)
    if not steps:
        return SelfTest(versions, steps, [ended])
    judged = [check_weights(versions), check_gap(steps), check_ratio(steps), check_staleness(steps, job.pipeline.alpha)]
    return SelfTest(versions, steps, [ended, *judged])


def shrink(job: Job) -> Job:
    """The same job, small and at learning rate 0. On Ray only if its file says so."""
    rollout, training, model = job.rollout, job.training, job.model
    if isinstance(model, TinyModel):
        warm = model.warm_start
        fewer = {"steps": min(warm.steps, 20), "episodes": min(warm.episodes, 100)}
        model = model.model_copy(update={"warm_start": warm.model_copy(update=fewer)})
    return job.model_copy(
        update={
            "model": model,
            "rollout": rollout.model_copy(
                update={
                    "groups_per_step": min(rollout.groups_per_step, GROUPS),
                    "group_size": min(rollout.group_size, MEMBERS),
                    "environments": min(rollout.environments, GROUPS * MEMBERS),
                    "filter": "none",  # what teaches nothing still tells whether log-probs agree
                }
            ),
            "training": training.model_copy(update={"steps": min(training.steps, STEPS), "learning_rate": 0.0}),
            "runtime": job.runtime if "runtime" in job.model_fields_set else InlineRuntime(type="inline"),
            "evaluation": job.evaluation.model_copy(update={"every": 0, "target": None}),
            "checkpoint": job.checkpoint.model_copy(update={"every": 0}),
            "logging": job.logging.model_copy(update={"tensorboard": False, "transcripts_per_step": 0}),
        }
    )


# ------------------------------------------------------------------------------------------------------ judging


def check_run(failure: str, done: int, wanted: int) -> Finding:
    if failure:
        return Finding("run", "broken", failure, "this job would fail the same way in training")
    return Finding("run", "ok", f"{done} of {wanted} steps at learning rate 0")


def check_weights(versions: Sequence[VersionChecksums]) -> Finding:
    held = {checksum for version in versions for checksum in (version.trainer, *version.engines)}
    if len(held) > 1:
        moved = next(v for v in versions if {v.trainer, *v.engines} != {versions[0].trainer})
        return Finding(
            "weights",
            "broken",
            f"version {moved.version} differs: {' '.join([moved.trainer, *moved.engines])}",
            f"at learning rate 0 every version must stay {versions[0].trainer}: see whether a hook changes weights",
        )
    engines = len(versions[0].engines) if versions else 0
    return Finding(
        "weights", "ok", f"{len(versions)} versions, one checksum: trainer, store and {engines} engine(s) agree"
    )


def check_gap(steps: Sequence[SelfTestStep]) -> Finding:
    means = [step.gap_mean for step in steps if step.gap_mean is not None]
    largest = [step.gap_max for step in steps if step.gap_max is not None]
    if not means:
        return Finding(
            "log-probs", "broken", "no step had a token of its own version", "set pipeline.alpha=0 for the test"
        )
    detail = f"engine and trainer differ by {max(means):.1e} nats on average, {max(largest, default=0.0):.1e} at most"
    if max(means) > MEAN_GAP or max(largest, default=0.0) > MAX_GAP:
        return Finding(
            "log-probs",
            "broken",
            f"{detail}; rounding is below {MEAN_GAP:.0e} and {MAX_GAP:.0e}",
            "engine and trainer compute different models, or the engine reports another sampling transform "
            "(temperature, top-p, top-k) than it drew with",
        )
    return Finding("log-probs", "ok", detail)


def check_ratio(steps: Sequence[SelfTestStep]) -> Finding:
    worst = max((ratio for step in steps for ratio in (step.ratio_p50, step.ratio_p99)), key=lambda r: abs(r - 1.0))
    if abs(worst - 1.0) > RATIO_GAP:
        return Finding(
            "ratio",
            "broken",
            f"a quantile of the importance ratio is {worst:.4f}",
            "with weights that never move it must be 1 on every token, stale ones too; see log-probs",
        )
    return Finding("ratio", "ok", f"median and 99th percentile are 1 within {abs(worst - 1.0):.1e}")


def check_staleness(steps: Sequence[SelfTestStep], alpha: float) -> Finding:
    stalest, bound = max(step.staleness for step in steps), math.ceil(alpha)
    if stalest > bound:
        return Finding(
            "staleness", "broken", f"{stalest} versions, above the bound of {bound}", "a bug: please report it"
        )
    return Finding("staleness", "ok", f"at most {stalest} versions, the bound is {bound}")


# ------------------------------------------------------------------------------------------------------- reading


def _versions(run: Path) -> list[VersionChecksums]:
    events = read_events(run / "events.jsonl")
    published: list[Any] = [event.data for event in events if event.name == "weights.publish"]
    staged: list[Any] = [event.data for event in events if event.name == "weights.stage"]
    echoed = {data["version"]: tuple(data["echoed"]) for data in staged}
    return [VersionChecksums(data["version"], data["checksum"], echoed.get(data["version"], ())) for data in published]


def _steps(run: Path) -> list[SelfTestStep]:
    return [
        SelfTestStep(
            row["step"],
            row.get("mismatch/logprob_gap"),
            row.get("mismatch/logprob_gap_max"),
            row["offpolicy/ratio_p50"],
            row["offpolicy/ratio_p99"],
            row["staleness/max"],
        )
        for row in read_metrics(run).rows
        if "offpolicy/ratio_p50" in row
    ]
