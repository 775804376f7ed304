"""ROLL Flash's experiments, in the order of its claims."""

from __future__ import annotations

from rollweave_experiments.flash import alpha, environment_async, queue, redundant, replication, scaling, split

EXPERIMENTS = (
    scaling.EXPERIMENT,
    queue.EXPERIMENT,
    replication.EXPERIMENT,
    environment_async.EXPERIMENT,
    redundant.EXPERIMENT,
    alpha.EXPERIMENT,
    split.EXPERIMENT,
)
