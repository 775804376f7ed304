"""The model of jobs that share pools: profiles, nodes, groups, how long a cycle takes, whose promise holds. Pure."""
