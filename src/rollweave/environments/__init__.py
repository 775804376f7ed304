"""Environments, in which an agent acts: their protocol, the shipped ones, their checks and their isolation."""
