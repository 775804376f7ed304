"""The embedded engine against `transformers.generate` on a ragged multi-turn workload."""
