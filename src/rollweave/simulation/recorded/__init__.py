"""A recorded run, played once more on the virtual clock."""
