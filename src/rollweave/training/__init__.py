"""The consumer: advantages, losses, the trainer and its checkpoints."""
