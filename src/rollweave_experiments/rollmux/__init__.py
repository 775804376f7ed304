"""RollMux's experiments. The time of its decisions is wall-clock time, which `bench.mux` measures."""

from __future__ import annotations

from rollweave_experiments.rollmux import decisions, drift, failure, micro, migration, simulation, sync, testbed

EXPERIMENTS = (
    micro.EXPERIMENT,
    migration.EXPERIMENT,
    sync.EXPERIMENT,
    testbed.EXPERIMENT,
    simulation.EXPERIMENT,
    decisions.EXPERIMENT,
    drift.EXPERIMENT,
    failure.EXPERIMENT,
)
