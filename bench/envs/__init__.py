"""Thousands of environments on one node, over Ray: turns per second with parts that do nothing."""
