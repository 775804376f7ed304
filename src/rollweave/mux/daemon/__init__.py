"""The daemon that runs many jobs on two pools: it profiles, places, starts and watches them, and grants permits."""
