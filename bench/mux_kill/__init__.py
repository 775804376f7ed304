"""kill -9 of jobs, of the daemon, of both, at random moments while jobs run."""
