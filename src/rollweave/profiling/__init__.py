"""Measuring the real parts of a job on this machine, so that simulations of it can be believed."""
