"""A modelled world without hardware, in which everything can go wrong: what the property tests play in."""
