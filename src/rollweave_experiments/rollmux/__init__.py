"""RollMux' experiments. Milliseconds of its decisions are not here: that is wall-clock time, for `bench.mux`."""

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
