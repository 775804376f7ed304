"""Many jobs woven into each other. Its room is ready; the work comes with its own issue."""
