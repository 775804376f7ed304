"""The control plane alone: turns per second with an engine and an environment that answer at once."""
