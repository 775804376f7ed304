"""Events, metrics, the terminal view and the report. Every package writes to it; no decision reads from it."""
