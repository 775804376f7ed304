"""The loops that tie producer and consumer together, one readable file per mode."""
