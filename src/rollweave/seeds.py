"""Seeds derived by name.

Every random choice in a run comes from `derive(job_seed, "group", 17, "env")`: a stable digest of a path
of names, never `hash()` (which differs per process) and never a shared generator (whose state would
depend on who asked first). Two components with different paths are independent; the same path gives the
same number on every machine and in every order.
"""

from __future__ import annotations

import random
from hashlib import blake2b

Name = str | int


def derive(seed: int, *path: Name) -> int:
    """A 63-bit seed for the given path of names under a parent seed."""
    # A single name is the case that comes once a turn.
    text = f"{seed}/{path[0]}" if len(path) == 1 else "/".join(map(str, (seed, *path)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *path: Name) -> random.Random:
    """A private generator for the given path."""
    return random.Random(derive(seed, *path))
