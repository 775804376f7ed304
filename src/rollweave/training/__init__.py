"""Training: advantages, losses, the trainer and its checkpoints."""
