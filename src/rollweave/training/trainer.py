"""The torch trainer: one process, synchronous, float32. From version n and a batch it makes version n + 1.

    begin → accumulate: check → finish: rows → advantages → mini-batches (one optimiser update each) → micro-batches

With `stream` the work is done as groups come: `accumulate` computes the gradients of its groups, without the factor
that needs the whole batch (how many tokens, how many trajectories), and `finish` scales them and makes the update.

The only random choice is the shuffling into mini-batches, which derives from (seed, version), and the learning rate is
a function of the version. So a checkpoint needs only weights, optimiser moments and the version (and the value head,
if the advantages have one), and a resume repeats exactly the same arithmetic.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollweave.config.training import GAEAdvantage, TrainingConfig
from rollweave.errors import ConfigError, RunFolderError
from rollweave.policies.forward import load_model, logprobs_at, save_model, token_logprobs, token_states
from rollweave.seeds import generator
from rollweave.training import checkpoint
from rollweave.training.advantages import batch_advantages, zero_share
from rollweave.training.diagnostics import StepRecord
from rollweave.training.gae import credit, explained_variance, value_head, value_loss
from rollweave.training.losses import (
    TokenBatch,
    TokenLoss,
    correction,
    objective,
    token_loss,
    token_weights,
    total,
    unscaled_weight,
    weight_scale,
)
from rollweave.training.packing import MicroBatch, PackedRow, micro_batches, rows_of
from rollweave.training.protocol import Metrics
from rollweave.training.step import OpenStep
from rollweave.trajectory import Batch, Group
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.probe import probe_tokens
from rollweave.weights.store import WeightStore

STATE = Path("state", "trainer.pt")
log = logging.getLogger(__name__)


class TorchTrainer:
    """Trains the policy in `folder`, which is also the KL reference for the whole run, also after a `load`."""

    def __init__(self, folder: Path, config: TrainingConfig, seed: int) -> None:
        from transformers import AutoTokenizer

        self.config = config
        self.seed = seed
        self.version = 0
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.reference = load_model(folder).requires_grad_(False) if config.loss.kl_coefficient > 0 else None
        self._step: OpenStep | None = None
        self._install(load_model(folder))

    # ------------------------------------------------------------------------------------------ one step

    def train_step(self, batch: Batch) -> Metrics:
        """A whole step at once, on a batch that is complete."""
        self.begin(batch.step)
        self.accumulate(batch.groups)
        return self.finish()

    def begin(self, step: int, stream: bool = False) -> None:
        """Open a train step. `stream`: `accumulate` computes gradients at once, and `finish` scales and applies them.

        What is left of a step that was never finished is dropped.
        """
        if stream and (obstacle := self.config.needs_whole_batch):
            raise ConfigError(f"this train step cannot be streamed: {obstacle}")
        if self._step is not None and self._step.record.passes:
            self._clear_gradients()
        self._step = OpenStep(step, stream)

    def accumulate(self, groups: Sequence[Group]) -> None:
        """Give the step groups of its batch. Those that lack log-probs or versions are refused."""
        step = self._opened()
        part = Batch(step.number, list(groups))
        part.check()
        step.add(part)
        if step.stream:
            rows = rows_of(part)
            self._credit(part, rows)
            for row in rows:
                row.weight = unscaled_weight(len(row.columns), self.config.loss.aggregation)
            step.rows += rows
            idle_too = self._learns_from_idle
            self._run([row for row in rows if idle_too or not row.idle], step.record)

    def finish(self) -> Metrics:
        """Make the updates of the step, all its mini-batches: version n becomes n + 1."""
        step = self._opened()
        batch = Batch(step.number, list(step.groups.values()))
        if not batch.groups:
            batch.check()  # it says what is wrong
        rate = self._set_learning_rate()
        if step.stream:
            self._finish_stream(step)
        else:
            self._train_whole(step, batch)
        metrics = step.record.metrics(self.version) | self._value_metrics(step.rows)
        self._warn(metrics)
        self.version += 1
        self._step = None
        return metrics | {
            "lr": rate,
            "tokens/trained": float(batch.sampled_tokens),
            "advantage/zero_share": zero_share(batch),
        }

    def _opened(self) -> OpenStep:
        assert self._step is not None, "`begin` opens a step"
        return self._step

    def _train_whole(self, step: OpenStep, batch: Batch) -> None:
        step.rows = rows_of(batch)
        self._credit(batch, step.rows)
        for number, passes in enumerate(self._minibatches(step.rows)):
            for micro in passes:
                self._backward(micro, step.record, before_update=number == 0)
            self._update(step.record)

    def _finish_stream(self, step: OpenStep) -> None:
        """The gradients so far lack the factor that only the whole batch knows."""
        if not step.record.passes:
            self._run(step.rows, step.record)  # all rows are idle, but the step's metrics need some
        step.record.scale = weight_scale([len(row.columns) for row in step.rows], self.config.loss.aggregation)
        for parameter in self.parameters:
            assert parameter.grad is not None, "see _install"
            parameter.grad.mul_(step.record.scale)
        self._update(step.record)

    def _run(self, rows: list[PackedRow], record: StepRecord) -> None:
        """Run rows forward and backward, before the step's only update."""
        for micro in micro_batches(rows, self.config.microbatch_tokens):
            self._backward(micro, record, before_update=True)

    def _credit(self, batch: Batch, rows: list[PackedRow]) -> None:
        """Give every row its advantages."""
        config = self.config.advantage
        if isinstance(config, GAEAdvantage):
            self._record_before(rows)
            credit(rows, batch, config)
            return
        for row, advantage in zip(rows, batch_advantages(batch, config), strict=True):
            row.advantage = advantage

    def _value_metrics(self, rows: list[PackedRow]) -> Metrics:
        if self.head is None:
            return {}
        values = [value for row in rows for value in row.values or ()]
        returns = [value for row in rows for value in row.returns or ()]
        return {"value/explained_variance": explained_variance(values, returns)}

    def _minibatches(self, rows: list[PackedRow]) -> list[list[MicroBatch]]:
        """The mini-batches as lists of passes. Every row counts in the denominators; idle rows are not computed."""
        groups = list(dict.fromkeys(row.group for row in rows))
        count = min(self.config.minibatches, len(groups))
        with_idle = self._compute_idle(rows)
        if count > 1:
            groups = generator(self.seed, "minibatches", self.version).sample(groups, len(groups))
            if self.config.needs_before and rows[0].before is None:
                self._record_before([row for row in rows if with_idle or not row.idle])
        # Groups are not divided: within a group advantages add up to zero, and so they do in a mini-batch.
        shares = [set(groups[i::count]) for i in range(count)]
        passes = [self._passes([row for row in rows if row.group in share], with_idle) for share in shares]
        # The first mini-batch shows the policy before the step, so it must not be an empty one.
        return sorted(passes, key=lambda minibatch: not minibatch)

    def _passes(self, rows: list[PackedRow], with_idle: bool) -> list[MicroBatch]:
        weights = token_weights([len(row.columns) for row in rows], self.config.loss.aggregation)
        for row, weight in zip(rows, weights, strict=True):
            row.weight = weight
        return micro_batches([row for row in rows if with_idle or not row.idle], self.config.microbatch_tokens)

    def _compute_idle(self, rows: list[PackedRow]) -> bool:
        """Whether idle rows are computed too: if a part of the loss has a gradient for them.

        They are also computed if there are no other rows, because the step's metrics need some.
        """
        return self._learns_from_idle or all(row.idle for row in rows)

    @property
    def _learns_from_idle(self) -> bool:
        return self.config.loss.moves_idle_rows or self.head is not None

    @torch.no_grad()
    def _record_before(self, rows: list[PackedRow]) -> None:
        """Record in the rows the policy's log-probs before the step, and the values if there is a head."""
        for micro in micro_batches(rows, self.config.microbatch_tokens):
            logprobs, _, values = self._forward(micro)
            lengths = [len(row.columns) for row in micro.members]
            for row, part in zip(micro.members, torch.split(logprobs, lengths), strict=True):
                row.before = part.tolist()
            if values is not None:
                for row, part in zip(micro.members, torch.split(values, lengths), strict=True):
                    row.values = part.tolist()

    def _backward(self, micro: MicroBatch, record: StepRecord, before_update: bool) -> None:
        """Run one pass forward and backward. Gradients of the passes add up to those of the mini-batch.

        `before_update` says that this step has made no update yet, so the pass itself sees the policy before the step.
        """
        new, entropy, values = self._forward(micro)
        before = new.detach() if before_update else micro.before
        loss = self._loss(micro, new, before, entropy)
        coefficient = 0.0
        if isinstance(self.config.advantage, GAEAdvantage):
            assert values is not None and micro.values is not None and micro.returns is not None, "see _credit"
            loss.value = value_loss(values, micro.values, micro.returns, self.config.advantage.value_clip)
            coefficient = self.config.advantage.value_coefficient
        total(loss, micro.weight, self.config.loss, coefficient).backward()  # type: ignore[no-untyped-call]
        record.passes.append((micro, loss.detached(), before))

    def _loss(self, micro: MicroBatch, new: Tensor, before: Tensor | None, entropy: Tensor) -> TokenLoss:
        config = self.config.loss
        policy = objective(TokenBatch(new, micro.behaviour, before, micro.advantage, micro.rows), config)
        mismatch = correction(before, micro.behaviour, micro.rows, micro.segments, self.config.mismatch)
        if config.entropy_coefficient == 0:
            entropy = entropy.detach()
        return token_loss(policy, mismatch, new, entropy, self._reference_logprobs(micro))

    def _forward(self, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """For every sampled token: its log-prob, the entropy and, with a head, the value of the state before it."""
        states = token_states(self.model, micro.tokens, micro.rows, micro.columns)
        targets = micro.tokens[micro.rows, micro.columns]
        values = None if self.head is None else self.head(states).squeeze(-1)
        return *logprobs_at(self.model, states, targets, micro.temperature), values

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        if self.reference is None:
            return None
        return token_logprobs(self.reference, micro.tokens, micro.rows, micro.columns, micro.temperature)[0]

    def _update(self, record: StepRecord) -> None:
        """Make one optimiser update from the accumulated gradients. It is skipped if they are not finite."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.gradient_clip))
        finite = norm < float("inf")  # False for NaN too
        if finite:
            self.optimizer.step()
            record.norms.append(norm)
        record.updates += 1
        record.skipped += not finite
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        # Set to 0 and not to None, so that the moments decay also in an update whose rows were all left out.
        self.optimizer.zero_grad(set_to_none=False)

    def _set_learning_rate(self) -> float:
        rate, advantage = learning_rate(self.version, self.config), self.config.advantage
        factors = [1.0, advantage.value_learning_rate_factor] if isinstance(advantage, GAEAdvantage) else [1.0]
        for group, factor in zip(self.optimizer.param_groups, factors, strict=True):  # the policy, the value head
            group["lr"] = rate * factor
        return rate

    def _warn(self, metrics: Metrics) -> None:
        if metrics["grad/skipped"]:
            log.warning("step %d: the gradient is not finite; the update was skipped", self.version)
        if metrics["offpolicy/uncorrected"]:
            log.warning("step %d: stale data, but every ratio is 1: trained as if on-policy", self.version)

    # --------------------------------------------------------------------------------- weights and checkpoints

    def weights(self) -> dict[str, Tensor]:
        """The current weights by their Hugging Face names, tied ones once. The next step changes these tensors."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @torch.no_grad()
    def probe(self) -> tuple[float, ...]:
        """The log-probs of the probe's tokens after the first, under the current weights."""
        tokens = torch.from_numpy(probe_tokens(self.model.config.vocab_size)).long()[None]
        columns = torch.arange(1, tokens.shape[1])
        scored, _ = token_logprobs(self.model, tokens, torch.zeros_like(columns), columns, torch.ones(len(columns)))
        return tuple(scored.tolist())

    def publish(self, version: int, store: WeightStore) -> Fingerprint:
        """Push the current weights to the store, and say how they score the probe."""
        return replace(store.push(version, self.weights()), probe=self.probe())

    def save(self, folder: Path, driver: checkpoint.DriverFiles = checkpoint.NO_DRIVER) -> None:
        """Write a checkpoint, completely or not at all; `driver` is the control plane's part of it."""
        checkpoint.write(folder, self._fill, driver)

    def _fill(self, folder: Path) -> None:
        save_model(self.model, self.tokenizer, folder)
        state = {"version": self.version, "optimizer": self.optimizer.state_dict()}
        if self.head is not None:
            state["value_head"] = self.head.state_dict()
        with (folder / STATE).open("wb") as file:
            torch.save(state, file)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint: the next step is bit for bit the same as without the interruption."""
        if not (folder / STATE).is_file():
            raise RunFolderError(f"{folder} is not a checkpoint to resume from: it lacks {STATE}")
        state = torch.load(folder / STATE, weights_only=True)
        if ("value_head" in state) != (self.head is not None):
            needed, found = ("one", "no") if self.head is not None else ("none", "a")
            raise RunFolderError(
                f"{folder} has {found} value head, but {self.config.advantage.type} advantages need {needed}: "
                "continue with the training.advantage.type the run was started with"
            )
        self._install(load_model(folder))
        if self.head is not None:
            self.head.load_state_dict(state["value_head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]
        self._step = None

    def _install(self, model: Any) -> None:
        self.model = model
        gae = isinstance(self.config.advantage, GAEAdvantage)
        self.head = value_head(model.config.hidden_size).to(model.device, model.dtype) if gae else None
        modules = [model] if self.head is None else [model, self.head]
        self.parameters: list[Tensor] = [parameter for module in modules for parameter in module.parameters()]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": list(module.parameters())} for module in modules],
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
            fused=True,
        )


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The rate of train step `step` (from 0): a linear warm-up, then the schedule.

    It is a pure function of the step, so a checkpoint need not save it.
    """
    peak, warmup, final_share = config.learning_rate, config.warmup_steps, config.final_learning_rate_share
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, config.steps - 1 - warmup))
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1.0 - (1.0 - final_share) * progress)
        case "cosine":
            return peak * (final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * progress)))
