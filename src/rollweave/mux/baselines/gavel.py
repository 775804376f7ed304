"""Gavel+: whole jobs share co-located nodes in six-minute rounds; phases are never interleaved.

Knowing both kinds of hardware it picks the one with more work per dollar for a job, which for these prices is the
co-located node. Two jobs on one node run one after the other: an iteration of each per meta-iteration, nothing
overlaps, and every round ends with a cold start of the next job. Both jobs' SLOs have to allow it.
"""

from __future__ import annotations

from rollweave.mux.baselines.colocated import colocated_job
from rollweave.mux.job import Job

ROUND_S = 360.0


def gavel_job(job: Job) -> Job:
    """In company a round loses its cold start: an iteration loses its share of that."""
    lost = job.profile.cold_s / ROUND_S
    return colocated_job(job, switch_s=job.profile.solo_s * lost / max(1e-9, 1 - lost))
