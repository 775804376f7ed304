"""Co-located on train nodes (veRL): no rollout nodes at all, both phases take turns on the same H800s.

In the scheduler's terms the whole iteration is one long train phase and rollout nodes cost nothing. RollMux's trace
totals put such an iteration at about the length of a disaggregated one (what the faster decoding of two phases on one
node gains, loading and unloading costs): 262.8 k$ against 347.9 k$ at 42.24 against 57.04 $/h a node pair.
"""

from __future__ import annotations

from dataclasses import replace

from rollweave.mux.model.job import Job
from rollweave.mux.model.node import Pool, train_pool
from rollweave.mux.model.state import ClusterState

ITERATION = 1.0
"""A co-located iteration against a disaggregated one."""
NO_ROLLOUT_S = 1e-6


def colocated_job(job: Job, iteration: float = ITERATION) -> Job:
    """The same work and the same SLO, measured against the same disaggregated iteration."""
    whole = job.profile.solo_s * iteration
    profile = replace(
        job.profile,
        t_roll=NO_ROLLOUT_S,
        t_train=whole - NO_ROLLOUT_S,
        t_sync=0.0,
        n_roll=1,
        mem_roll=0.0,
        switch_roll=0.0,
        switch_train=0.0,
    )
    return replace(job, profile=profile)


def colocated_state() -> ClusterState:
    return ClusterState(Pool(price=0.0), train_pool())
