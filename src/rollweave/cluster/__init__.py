"""Pools and the workers on them: the papers' `Worker` and `Cluster`, and clusters on Kubernetes."""
