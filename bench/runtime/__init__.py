"""What the Ray runtime costs beside the inline one, on the same job with the same threads."""
