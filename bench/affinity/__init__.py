"""What does `rollout.affinity: auto` reach, against every declared mapping, single pools, and `least_held`?"""
