"""Rollweave: reinforcement-learning post-training of LLM agents. One control plane, two clocks."""
