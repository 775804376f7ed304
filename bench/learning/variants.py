"""What is compared: `sync`, and `rollart` at three alphas under each loss made for stale data, and one made wrong.

With one mini-batch to a step all of these losses have the same gradient on fresh data, so one `sync` serves them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollweave.config.job import Job
from rollweave.config.load import load_job
from rollweave.config.losses import PPOLoss

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
"""Stale data over the trainer's own log-probs of the moment: every ratio is 1, nothing is corrected. A job file that
asks for this is refused, so it is put into a checked job."""


@dataclass(frozen=True, slots=True)
class Variant:
    loss: str
    alpha: int
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.loss}, alpha {self.alpha}" if self.alpha else self.loss

    def job(self, overrides: Sequence[str] = ()) -> Job:
        job = load_job(FILE, [*self.overrides, *overrides])
        if self.loss != WRONG:
            return job
        training = job.training.model_copy(update={"loss": PPOLoss(denominator="proximal")})
        return job.model_copy(update={"training": training})


SYNC = Variant("sync", 0, ("pipeline.type=sync",))


def variants(losses: list[str], alphas: list[int]) -> list[Variant]:
    """`sync` first, then every loss at every alpha."""
    overrides = LOSSES | {WRONG: LOSSES["ppo"]}
    stale = [
        Variant(loss, alpha, ("pipeline.type=rollart", f"pipeline.alpha={alpha}", *overrides[loss]))
        for alpha in alphas
        for loss in losses
    ]
    return [SYNC, *stale]
