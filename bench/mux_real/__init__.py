"""Three training jobs multiplexed on two cores, against each of them alone in turn."""
