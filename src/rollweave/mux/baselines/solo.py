"""Solo-D: every job has its own rollout and train nodes. Disaggregation as it is without multiplexing."""

from __future__ import annotations

from rollweave.mux.baselines.plain import Plain


class Solo(Plain):
    """Everything is inherited: a group of its own for everybody."""
