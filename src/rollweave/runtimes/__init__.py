"""Where the parts run: inline on one loop, or in processes of their own on Ray."""
