"""Simulated work: presets of the papers' tasks, episodes drawn from them, and recorded runs played again."""
