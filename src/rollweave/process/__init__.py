"""Processes of one's own for user code that may hang or crash: environments and rewards."""
