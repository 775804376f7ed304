"""The model of mux jobs that share pools: profiles, nodes, co-groups, the length of a lap, and SLOs. It is pure."""
