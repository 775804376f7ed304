"""How long modelled hardware takes: rooflines for generation and training, links for weights, prices."""
