"""Measures the real parts of a job on this machine, so that simulations of the job use real times."""
