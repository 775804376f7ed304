"""Makes a cluster that already runs many jobs, to measure what one more decision takes."""

from __future__ import annotations

import random
from dataclasses import replace

from rollweave.mux.decisions.scheduler import Scheduler
from rollweave.mux.model.job import JobProfile, MuxJob
from rollweave.mux.model.policy import MuxPolicy
from rollweave.mux.model.state import ClusterState

SIZES = ((50, 100), (100, 200), (200, 300))
"""Seconds per phase of small, medium and large balanced jobs (RollMux table 6)."""
SKEWS = ((1.0, 1.0), (2.0, 0.6), (0.6, 2.0))
"""Balanced, rollout-heavy, train-heavy."""


def crowd(policy: MuxPolicy, running: int, draw: random.Random) -> ClusterState:
    state = ClusterState()
    # Without moves, and with few assessed options, it fills quickly.
    filling = Scheduler(replace(policy, consolidation=False, max_assessed=4))
    for number in range(running):
        job = draw_job(f"{number}", draw)
        filling.apply(state, filling.arrive(state, job, 0.0), 0.0, job)
    return state


def draw_job(name: str, draw: random.Random) -> MuxJob:
    low, high = draw.choice(SIZES)
    roll, train = draw.choice(SKEWS)
    profile = JobProfile(roll * draw.uniform(low, high), train * draw.uniform(low, high))
    return MuxJob(name, profile, draw.uniform(1, 2), draw.randint(50, 500))
