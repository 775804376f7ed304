"""Engines generate: tokens in, tokens and log-probs out."""
