"""ROLL Flash's experiments, in the order of its claims."""

from __future__ import annotations

from rollweave.simulation.experiments.frame import Experiment

EXPERIMENTS: tuple[Experiment, ...] = ()
