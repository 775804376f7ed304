"""Jobs for a trace: the job classes of RollMux's simulation (Table 6) on the arrivals and durations of a trace.

A trace says when a job comes and how long it runs alone; what its phases look like is drawn here: balanced (bl),
rollout-heavy (rh), train-heavy (th) or all nine kinds alike (mixed), each small, medium or large. Every job has its
own generator, so the same seed gives a job the same profile whatever comes before it in the trace.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollweave.errors import ConfigError
from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.simulation.trace import TraceJob
from rollweave.seeds import generator

Range = tuple[float, float]


class JobClass(NamedTuple):
    """Seconds of a phase are drawn evenly from these spans."""

    roll: Range
    train: Range


CLASSES: dict[str, dict[str, JobClass]] = {
    "bl": {
        "S": JobClass((50, 100), (50, 100)),
        "M": JobClass((100, 200), (100, 200)),
        "L": JobClass((200, 300), (200, 300)),
    },
    "rh": {
        "S": JobClass((100, 200), (25, 50)),
        "M": JobClass((200, 400), (50, 100)),
        "L": JobClass((400, 600), (100, 200)),
    },
    "th": {
        "S": JobClass((25, 50), (100, 200)),
        "M": JobClass((50, 100), (200, 400)),
        "L": JobClass((100, 200), (400, 600)),
    },
}
"""RollMux, Table 6."""


class Model(NamedTuple):
    """Host GB on a node; cold start, warm start and move in seconds (RollMux, Table 2 and section 7)."""

    mem_roll: float
    mem_train: float
    cold_roll: float
    cold_train: float
    switch_roll: float
    switch_train: float
    move_s: float


MODELS = {
    "7B": Model(275.7, 240.0, 38.8, 32.7, 0.9, 4.1, 197.0),
    "14B": Model(445.4, 456.1, 60.4, 59.0, 1.8, 4.7, 300.0),
    "32B": Model(490.3, 520.4, 81.7, 81.2, 1.7, 5.9, 419.0),
}
MODEL_OF = {"S": "7B", "M": "14B", "L": "32B"}
"""The paper does not say which model a small, medium or large job trains; these three are the sizes it measured."""

SIZES = {"one": (1,), "testbed": (1,) * 10 + (2,), "mixed": (1, 2, 4, 8)}
"""Nodes per pool, each alike: all one; 8.7 GPUs a job as on the testbed; 8 to 64 GPUs."""


@dataclass(frozen=True, slots=True)
class JobMix:
    """What is drawn for a trace."""

    jobs: str = "mixed"
    sizes: str = "one"
    slo: Range = (1.0, 2.0)
    memory: bool = False
    """Give every job the host memory of its model; without it only the size of a group is limited, as in the paper."""

    def __post_init__(self) -> None:
        _known("jobs", self.jobs, [*CLASSES, "mixed"])
        _known("sizes", self.sizes, list(SIZES))
        if not 1 <= self.slo[0] <= self.slo[1]:
            raise ConfigError(f"slo from {self.slo[0]} to {self.slo[1]}: an SLO is at least 1, and the lower one first")


def _known(what: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise ConfigError(f"{what} {name!r} is unknown; there are: {', '.join(names)}")


def draw_jobs(trace: Sequence[TraceJob], workload: JobMix, seed: int) -> list[MuxJob]:
    """One job per line of the trace: it does as many iterations as fill its duration when it runs alone."""
    return [draw_job(f"{i}", line, workload, generator(seed, "mux", "job", i)) for i, line in enumerate(trace)]


def draw_job(name: str, line: TraceJob, workload: JobMix, draw: random.Random) -> MuxJob:
    family = draw.choice(list(CLASSES)) if workload.jobs == "mixed" else workload.jobs
    size = draw.choice(list(MODEL_OF))
    kind, model = CLASSES[family][size], MODELS[MODEL_OF[size]]
    t_roll, t_train = draw.uniform(*kind.roll), draw.uniform(*kind.train)
    slo = draw.uniform(*workload.slo)
    nodes = draw.choice(SIZES[workload.sizes])
    if not workload.memory:
        model = model._replace(mem_roll=0.0, mem_train=0.0)
    profile = JobProfile(t_roll, t_train, nodes, nodes, **model._asdict())
    return MuxJob(name, profile, slo, math.ceil(line.duration_s / profile.solo_s))
