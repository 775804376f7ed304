"""The probe: a fixed row of tokens that the trainer scores with each version it publishes, and each engine with each
version it commits. Digests say that the right bytes arrived; the probe says that the engine computes with them. An
engine that packs its weights cannot be read back, and one that forgets to pack a matrix again still samples fluently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollweave.seeds import generator
from rollweave.trajectory import TokenIds, token_ids

PROBE_TOKENS = 32
"""Enough to pass through every matrix of a model several times, and still cheap: about one decode step."""


def probe_tokens(vocabulary: int) -> TokenIds:
    """The probe of all models with so many tokens in their vocabulary."""
    draws = generator(0, "probe", vocabulary)
    return token_ids(draws.randrange(vocabulary) for _ in range(PROBE_TOKENS))


def probe_gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference between two scores of the probe; infinite if they cannot be compared."""
    if len(ours) != len(theirs):
        return math.inf
    gaps = [abs(one - other) for one, other in zip(ours, theirs, strict=True)]
    return max(gaps, default=0.0) if all(map(math.isfinite, gaps)) else math.inf
