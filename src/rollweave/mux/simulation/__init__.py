"""Traces of jobs, replayed under a policy."""
