"""Who goes where: plans, the invariants they are checked against, and how they are found. Pure."""
