"""The policies with which RollMux is compared; `setups.py` lists them by name."""
