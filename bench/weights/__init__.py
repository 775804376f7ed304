"""How long new weights take to reach an engine, and how long it stalls for them."""
