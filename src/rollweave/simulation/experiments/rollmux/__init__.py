"""RollMux' experiments. Its decision latency is not here: that is wall-clock time, measured by `bench.mux`."""

from __future__ import annotations

from rollweave.simulation.experiments.rollmux import drift, failure, micro, migration, simulation, sync, testbed

EXPERIMENTS = (
    micro.EXPERIMENT,
    migration.EXPERIMENT,
    sync.EXPERIMENT,
    testbed.EXPERIMENT,
    simulation.EXPERIMENT,
    drift.EXPERIMENT,
    failure.EXPERIMENT,
)
