"""The engines of a run: which there are, where a request goes, and how new weights reach them."""
