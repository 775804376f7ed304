"""Derives seeds from names.

Every random choice in a run comes from a seed like `derive(job_seed, "group", 17, "env")`, a stable digest of a path
of names. It never comes from `hash()`, which differs per process, nor from a shared generator, whose state would
depend on the order of calls. Two components with different paths are independent; the same path gives the
same number on every machine and in every order.
"""

from __future__ import annotations

import random
from hashlib import blake2b

Name = str | int


def derive(seed: int, *path: Name) -> int:
    """A 63-bit seed for the given path of names under a parent seed."""
    # The case of a single name is faster, because it happens in every turn.
    text = f"{seed}/{path[0]}" if len(path) == 1 else "/".join(map(str, (seed, *path)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *path: Name) -> random.Random:
    """Make a generator of its own for the given path."""
    return random.Random(derive(seed, *path))
