"""What RollMux is compared with, one small file each; `setups.py` names them all."""
