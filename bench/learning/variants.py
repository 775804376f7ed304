"""What is compared: `sync`, and `rollart` at three alphas under each loss made for stale data, and one made wrong.

With one mini-batch to a step all of these losses have the same gradient on fresh data, so one `sync` serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("vowels.yaml")

TARGET = 0.7
"""The reward, smoothed, that counts as learnt."""

ALPHAS = (1, 2, 4)

LOSSES: dict[str, tuple[str, ...]] = {
    "ppo": ("training.loss.type=ppo", "training.loss.denominator=behaviour"),
    "decoupled_ppo": ("training.loss.type=decoupled_ppo",),
    "tis": ("training.loss.type=tis", "training.loss.denominator=behaviour"),
    "cispo": ("training.loss.type=cispo", "training.loss.denominator=behaviour"),
    "topr": ("training.loss.type=topr", "training.loss.denominator=behaviour"),
}

WRONG = "ppo, wrong denominator"
"""Stale data over the trainer's own log-probs of the moment: every ratio is 1, nothing is corrected."""
WRONG_OVERRIDES = ("training.loss.type=ppo", "training.loss.denominator=proximal")


@dataclass(frozen=True, slots=True)
class Variant:
    loss: str
    alpha: int
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.loss}, alpha {self.alpha}" if self.alpha else self.loss


SYNC = Variant("sync", 0, ("pipeline.type=sync",))


def variants(losses: list[str], alphas: list[int]) -> list[Variant]:
    """`sync` first, then every loss at every alpha."""
    overrides = LOSSES | {WRONG: WRONG_OVERRIDES}
    stale = [
        Variant(loss, alpha, ("pipeline.type=rollart", f"pipeline.alpha={alpha}", *overrides[loss]))
        for alpha in alphas
        for loss in losses
    ]
    return [SYNC, *stale]
