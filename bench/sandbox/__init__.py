"""What a sandbox costs, over the bare start of an interpreter."""
