"""Typed job files and their strict loading."""
