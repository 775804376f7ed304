"""The torch trainer: one process, synchronous, float32. Version n and a batch become version n + 1.

    check → advantages → rows → mini-batches (one optimiser update each) → micro-batches (accumulated)

Nothing in here is random but the shuffling into mini-batches, which derives from (seed, version), and the learning
rate is a function of the version: a checkpoint holds weights, optimiser moments and the version, and continuing from
it repeats the very same arithmetic.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollweave.config.training import TrainingConfig
from rollweave.errors import RunFolderError
from rollweave.policies.forward import load_model, save_model, token_logprobs
from rollweave.seeds import generator
from rollweave.training import checkpoint
from rollweave.training.advantages import batch_advantages, zero_share
from rollweave.training.diagnostics import StepRecord
from rollweave.training.losses import TokenLoss, ppo_loss, token_weights, total
from rollweave.training.packing import MicroBatch, Row, micro_batches, rows_of
from rollweave.training.protocol import Metrics
from rollweave.training.schedule import learning_rate
from rollweave.trajectory import Batch

STATE = Path("state", "trainer.pt")
log = logging.getLogger(__name__)


class TorchTrainer:
    """Trains the policy in `folder`, which also is the KL reference for good (a later `load` does not change it)."""

    def __init__(self, folder: Path, config: TrainingConfig, seed: int, *, version: int = 0) -> None:
        from transformers import AutoTokenizer

        self.config = config
        self.seed = seed
        self.version = version
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.reference = load_model(folder).requires_grad_(False) if config.loss.kl_coefficient > 0 else None
        self._use(load_model(folder))

    # ------------------------------------------------------------------------------------------ one step

    def train_step(self, batch: Batch) -> Metrics:
        """One train step with all its mini-batches. Refuses a batch that was not honestly sampled."""
        batch.check()
        rows = rows_of(batch, batch_advantages(batch, self.config.advantage))
        minibatches = self._minibatches(rows)
        rate = self._set_learning_rate()
        record = StepRecord()
        if self.config.loss.denominator == "proximal" and len(minibatches) > 1:
            self._recompute(minibatches)
        for number, passes in enumerate(minibatches):
            for micro in passes:
                self._accumulate(micro, record, untouched=number == 0)
            self._update(record)
        metrics = record.metrics(self.version)
        self._warn(metrics)
        self.version += 1
        return metrics | {
            "lr": rate,
            "tokens/trained": float(batch.sampled_tokens),
            "advantage/zero_share": zero_share(batch),
        }

    def _minibatches(self, rows: list[Row]) -> list[list[MicroBatch]]:
        """Mini-batches as lists of passes. Every row counts in the denominators; idle ones are not computed."""
        groups = list(dict.fromkeys(row.group for row in rows))
        count = min(self.config.minibatches, len(groups))
        idle_too = self._compute_idle(rows)
        if count > 1:
            groups = generator(self.seed, "minibatches", self.version).sample(groups, len(groups))
        # Whole groups: within one, advantages add up to zero, and a mini-batch should not be pulled off that.
        shares = [set(groups[i::count]) for i in range(count)]
        return [self._passes([row for row in rows if row.group in share], idle_too) for share in shares]

    def _passes(self, rows: list[Row], idle_too: bool) -> list[MicroBatch]:
        weights = token_weights([len(row.columns) for row in rows], self.config.loss.aggregation)
        chosen = [(row, weight) for row, weight in zip(rows, weights, strict=True) if row.advantage or idle_too]
        return micro_batches([r for r, _ in chosen], [w for _, w in chosen], self.config.microbatch_tokens)

    def _compute_idle(self, rows: list[Row]) -> bool:
        """Whether rows without advantage are computed: for KL or entropy, which they do move.

        Also if there are no others: the step's metrics want something to look at.
        """
        loss = self.config.loss
        return loss.kl_coefficient > 0 or loss.entropy_coefficient > 0 or not any(row.advantage for row in rows)

    @torch.no_grad()
    def _recompute(self, minibatches: list[list[MicroBatch]]) -> None:
        for passes in minibatches:
            for micro in passes:
                micro.before, _ = self._logprobs(self.model, micro)

    def _accumulate(self, micro: MicroBatch, record: StepRecord, untouched: bool) -> None:
        """Forward and backward of one pass; gradients add up to the mini-batch's.

        `untouched`: no update of this step has happened yet, so the pass itself sees the policy before the step.
        """
        config = self.config.loss
        new, entropy = self._logprobs(self.model, micro)
        before = new.detach() if untouched else micro.before
        if config.denominator == "proximal":
            assert before is not None, "recomputed at the start of the step"
            old = before
        else:
            old = micro.behaviour
        if config.entropy_coefficient == 0:
            entropy = entropy.detach()
        loss = ppo_loss(new, old, micro.advantage, entropy, self._reference_logprobs(micro), config)
        total(loss, micro.weight, config).backward()  # type: ignore[no-untyped-call]
        record.passes.append((micro, _detached(loss), before))

    @staticmethod
    def _logprobs(model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        return token_logprobs(model, micro.tokens, micro.rows, micro.columns, micro.temperature)

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        return None if self.reference is None else self._logprobs(self.reference, micro)[0]

    def _update(self, record: StepRecord) -> None:
        """One optimiser update from the gradients accumulated; skipped if they are not finite."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.gradient_clip))
        finite = norm < float("inf")  # False for NaN too
        if finite:
            self.optimizer.step()
            record.norms.append(norm)
        record.updates += 1
        record.skipped += not finite
        # Zeroed, not dropped: an update whose rows all were left out still lets the moments decay.
        self.optimizer.zero_grad(set_to_none=False)

    def _set_learning_rate(self) -> float:
        config = self.config
        rate = learning_rate(
            self.version,
            peak=config.learning_rate,
            kind=config.schedule,
            warmup=config.warmup_steps,
            total=config.steps,
            final_share=config.final_learning_rate_share,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _warn(self, metrics: Metrics) -> None:
        if metrics["grad/skipped"]:
            log.warning("step %d: the gradient is not finite; the update was skipped", self.version)
        if metrics["offpolicy/uncorrected"]:
            log.warning("step %d: stale data, but every ratio is 1: trained as if on-policy", self.version)

    # --------------------------------------------------------------------------------- weights and checkpoints

    def weights(self) -> dict[str, Tensor]:
        """The current weights under their Hugging Face names, tied ones once. Views: copy them before the next step."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found[name] = tensor.detach()
        return found

    def save(self, folder: Path, driver: str = "{}") -> None:
        """Write a checkpoint, whole or not at all; `driver` is the control plane's part of it."""
        checkpoint.write(folder, self._fill, driver)

    def _fill(self, folder: Path) -> None:
        save_model(self.model, self.tokenizer, folder)
        (folder / STATE).parent.mkdir()
        with (folder / STATE).open("wb") as file:
            torch.save({"version": self.version, "optimizer": self.optimizer.state_dict()}, file)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint: the next step is bit for bit the one that would have followed."""
        if not (folder / STATE).is_file():
            raise RunFolderError(f"{folder} is not a checkpoint to resume from: it lacks {STATE}")
        state = torch.load(folder / STATE, weights_only=True)
        self._use(load_model(folder))
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]

    def _use(self, model: Any) -> None:
        self.model = model
        self.parameters: list[Tensor] = list(model.parameters())
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
            fused=True,
        )


def _detached(loss: TokenLoss) -> TokenLoss:
    return TokenLoss(loss.policy.detach(), loss.kl.detach(), loss.entropy.detach(), loss.ratio, loss.clipped)
