"""RollPacker's experiments come with its mechanisms (tail batching, stream trainer, parallelism planner)."""

from __future__ import annotations

from rollweave_experiments.frame import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
