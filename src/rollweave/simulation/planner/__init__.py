"""What to rent: searches clusters and settings for a job, by estimate first, by simulation for the best few."""
