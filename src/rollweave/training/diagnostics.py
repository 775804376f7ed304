"""Computes the metrics of a train step: its losses, how off-policy its data was, whether engine and trainer agree.

What a pass leaves behind stays on the device until the step is over (`StepRecord.settle`). Metrics are computed in main
memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollweave.crossing import down
from rollweave.training.losses import TokenLoss
from rollweave.training.packing import MicroBatch
from rollweave.training.protocol import Metrics


@dataclass(slots=True)
class PassRecord:
    """What metrics need of a pass, per sampled token, without gradients."""

    versions: NDArray[np.int64]
    weight: Tensor
    behaviour: Tensor
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    corrected_by: Tensor
    clipped: Tensor
    before: Tensor | None
    """The trainer's log-probs before the step, if known. They are always known for the first mini-batch, which is a
    random share of the groups."""
    factor: Tensor | None
    cut: Tensor | None
    value: Tensor | None

    @classmethod
    def of(cls, micro: MicroBatch, loss: TokenLoss, before: Tensor | None) -> PassRecord:
        loss, mismatch = loss.detached(), loss.mismatch
        return cls(
            micro.versions,
            micro.weight,
            micro.behaviour,
            loss.policy,
            loss.kl,
            loss.entropy,
            loss.corrected_by,
            loss.clipped,
            before,
            None if mismatch is None else mismatch.factor,
            None if mismatch is None else mismatch.cut,
            loss.value,
        )

    def tensors(self) -> dict[str, Tensor]:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}


@dataclass(slots=True)
class StepRecord:
    """Collects the passes and updates of one train step."""

    passes: list[PassRecord] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    updates: int = 0
    skipped: int = 0
    scale: float = 1.0
    """What the weights of the passes lack, if they were computed before the whole batch was known."""

    def settle(self) -> None:
        """Bring what the passes left behind to main memory, in one crossing."""
        places = [(one, name, tensor) for one in self.passes for name, tensor in one.tensors().items()]
        if places:
            for (one, name, _), array in zip(places, down(*(tensor for *_, tensor in places)), strict=True):
                setattr(one, name, torch.from_numpy(array))

    def metrics(self, version: int) -> Metrics:
        weight = self._flat("weight") * self.scale
        versions = torch.from_numpy(np.concatenate([one.versions for one in self.passes]))
        policy, kl, entropy = (self._flat(name) for name in ("policy", "kl", "entropy"))
        known = [(one, one.before) for one in self.passes if one.before is not None]
        before = torch.cat([before for _, before in known])
        drawn = torch.cat([one.behaviour for one, _ in known])
        drawn_by = torch.from_numpy(np.concatenate([one.versions for one, _ in known]))
        found = {
            "loss/policy": float((weight * policy).sum()) / self.updates,
            "loss/kl": float((weight * kl).sum() / weight.sum()),
            "loss/entropy": float((weight * entropy).sum() / weight.sum()),
            "grad/norm": sum(self.norms) / max(1, len(self.norms)),
            "grad/skipped": float(self.skipped),
            **off_policy(before, drawn),
            "offpolicy/clip_fraction": float(self._flat("clipped").float().mean()),
            "offpolicy/uncorrected": float(
                bool((before != drawn)[drawn_by < version].any())
                and identically_one(self._flat("corrected_by"), versions < version)
            ),
            **logprob_gap(before, drawn, drawn_by, version),
            **self._mismatch(),
            **self._value(weight),
        }
        # A skipped update has infinite losses, which the metrics file cannot hold; `grad/skipped` counts them.
        return {name: value if math.isfinite(value) else 0.0 for name, value in found.items()}

    def _mismatch(self) -> Metrics:
        found = [(one.factor, one.cut) for one in self.passes if one.factor is not None and one.cut is not None]
        if not found:
            return {}
        factor, cut = (torch.cat(parts) for parts in zip(*found, strict=True))
        return {"mismatch/factor_mean": float(factor.mean()), "mismatch/cut_share": float(cut.float().mean())}

    def _value(self, weight: Tensor) -> Metrics:
        found = [one.value for one in self.passes if one.value is not None]
        return {"loss/value": float((weight * torch.cat(found)).sum() / weight.sum())} if found else {}

    def _flat(self, name: str) -> Tensor:
        return torch.cat([getattr(one, name) for one in self.passes])


def off_policy(before: Tensor, behaviour: Tensor) -> Metrics:
    """Measure how the policy before the step differs from the policy that drew the tokens.

    `ess` is the effective sample size as a share: 1 when on-policy, near 0 when a few tokens have all the weight.
    """
    ratio = torch.exp((before - behaviour).double())
    middle, high = torch.quantile(ratio, torch.tensor([0.5, 0.99], dtype=torch.float64)).tolist()
    return {
        "offpolicy/ess": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        "offpolicy/ratio_p50": middle,
        "offpolicy/ratio_p99": high,
        "offpolicy/ratio_max": float(ratio.max()),
    }


def identically_one(corrected_by: Tensor, stale: Tensor) -> bool:
    """Whether there are stale tokens and each of their ratios and weights is exactly 1, so that nothing is corrected.

    That is no problem if the policy has not changed since the draw, because stale data is then as good as fresh data.
    """
    return bool(stale.any()) and bool((corrected_by[stale] == 1.0).all())


def logprob_gap(before: Tensor, behaviour: Tensor, versions: Tensor, current: int) -> Metrics:
    """Mean and largest |trainer - engine| log-prob on tokens of the current version; empty if the batch has none.

    On those tokens the two should agree up to rounding, and a gap means that engine and trainer compute different
    models. On older tokens they differ because the policy has changed, which says nothing about the engine.
    """
    gaps = (before - behaviour).abs()[versions == current]
    if not len(gaps):
        return {}
    return {"mismatch/logprob_gap": float(gaps.mean()), "mismatch/logprob_gap_max": float(gaps.max())}
