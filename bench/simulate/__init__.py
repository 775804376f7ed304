"""How fast the simulation is: a production run on 3,000 GPUs, and the same per GPU on 30."""
