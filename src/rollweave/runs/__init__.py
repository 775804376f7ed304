"""One run, from its start to its end: its folder, its logs, one process's work on it, and where a resume goes on."""
