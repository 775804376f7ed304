"""The report of a run: one HTML file with everything in it."""
