"""Small programs for the people who work on Rollweave. Run them from the repository: `python -m tools.<name>`."""
