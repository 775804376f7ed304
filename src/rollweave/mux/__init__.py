"""Runs many jobs on two pools: while one job trains, another rolls out.

`model/` and `decisions/` are pure. The replay of traces (`simulation/`) and the daemon use the same `Scheduler`.
"""
