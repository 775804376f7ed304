"""The typed sections of job, simulation, plan and cluster files, and their strict loading."""
