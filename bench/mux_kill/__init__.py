"""kill -9 of jobs, of the daemon, of both, at random moments of a cluster at work."""
