"""How long a scheduling decision takes, from five running jobs to two thousand."""
