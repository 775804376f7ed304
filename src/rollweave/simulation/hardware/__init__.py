"""Modelled GPUs: engines by roofline, their trainer, environments by script."""
