"""Modelled engine, trainer and environment for the virtual clock."""
