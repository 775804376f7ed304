"""Predicted against measured: a profiled job, simulated and really run, in several modes and environment latencies."""
