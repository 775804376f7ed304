"""Events, metrics, the terminal view and the report. Written to by all, reads nothing back."""
