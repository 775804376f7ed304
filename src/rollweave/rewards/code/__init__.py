"""Code rewards: the program of an answer runs in a sandbox, against tests that it can neither read nor judge."""
