"""What redundancy, filtering and the staleness policies cost and gain, on the virtual clock."""
