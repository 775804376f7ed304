"""The torch trainer: one process, or one rank of several. From version n and a batch it makes version n + 1.

    begin → accumulate: check → finish: rows → advantages → mini-batches (one optimiser update each) → micro-batches

With `stream` the work is done as groups come: `accumulate` computes the gradients of its groups, without the factor
that needs the whole batch (how many tokens, how many trajectories), and `finish` scales them and makes the update.

The only random choice is the shuffling into mini-batches, which derives from (seed, version), and the learning rate is
a function of the version. So a checkpoint needs only weights, optimiser moments and the version (and the value head,
if the advantages have one), and a resume repeats exactly the same arithmetic.

Of several ranks (`rollweave.training.ranks`) each holds a share of the weights and computes a share of the rows; all of
them get the same calls.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollweave.config.training import GAEAdvantage, TrainingConfig
from rollweave.crossing import CPU, down, move, scalar, up
from rollweave.errors import ConfigError, RunFolderError, UntrainableBatch
from rollweave.policies.asleep import Asleep, resident_bytes
from rollweave.policies.forward import TrainedPolicy, load_model, save_model
from rollweave.seeds import generator
from rollweave.training import checkpoint
from rollweave.training.advantages import batch_advantages, zero_share
from rollweave.training.diagnostics import PassRecord, StepRecord
from rollweave.training.gae import credit, explained_variance, value_head, value_loss
from rollweave.training.lora import adapter_sources, add_adapter, weight_sources
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
from rollweave.training.packing import MicroBatch, PackedRow, micro_batches_of_rank, rows_of
from rollweave.training.protocol import Metrics
from rollweave.training.ranks import ALONE, Ranks, WholeWeights, shard, source, whole
from rollweave.training.trainer_files import (
    make_moments,
    moments,
    names_of_parts,
    read_note,
    read_parts,
    write_note,
    write_parts,
)
from rollweave.trajectory import Batch, Group
from rollweave.weights.buckets import Fingerprint
from rollweave.weights.probe import probe_tokens
from rollweave.weights.store import WeightStore

log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenStep:
    """What the trainer holds of a train step between `begin` and `finish`."""

    number: int
    stream: bool
    """Whether the gradients of groups are computed as they come."""
    groups: dict[int, Group] = field(default_factory=dict)
    rows: list[PackedRow] = field(default_factory=list)
    """Of the groups whose advantages are known."""
    record: StepRecord = field(default_factory=StepRecord)

    def add(self, part: Batch) -> None:
        """Note groups of the batch; a group that came twice would count twice."""
        for group in part.groups:
            if group.id in self.groups:
                raise UntrainableBatch(f"step {self.number}: group {group.id} was given to the trainer twice")
            self.groups[group.id] = group


class TorchTrainer:
    """Trains the policy in `folder`, which is also the KL reference for the whole run, also after a `load`."""

    def __init__(
        self,
        folder: Path,
        config: TrainingConfig,
        seed: int,
        ranks: Ranks = ALONE,
        device: torch.device = CPU,
        sleeps: bool = False,
    ) -> None:
        """`sleeps`: it takes memory on the device only from `finish` to the end of `publish`, and while it saves."""
        from transformers import AutoTokenizer

        self.folder = folder
        self.config = config
        self.seed = seed
        self.ranks = ranks
        self.device = device
        self.sleeps = sleeps
        self._asleep: Asleep | None = None
        self.version = 0
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.reference = self._reference() if config.loss.kl_coefficient > 0 else None
        self._step: OpenStep | None = None
        self._install(self._loaded(folder))
        self._rest()

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
        if self._step is not None:
            self._clear_gradients()
        self.ranks.agree(f"train step {step}", step=step, version=self.version)
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
        self.wake()
        step = self._opened()
        batch = Batch(step.number, list(step.groups.values()))
        if not batch.groups:
            batch.check()  # it says what is wrong
        rate = self._set_learning_rate()
        if step.stream:
            self._finish_stream(step)
        else:
            self._train_whole(step, batch)
        step.record.settle()
        step.record.passes = [one for passes in self.ranks.gathered(step.record.passes) for one in passes]
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
        if not self._learns_from_idle and all(row.idle for row in step.rows):
            self._run(step.rows, step.record)  # all rows are idle, but the step's metrics need some
        step.record.scale = weight_scale([len(row.columns) for row in step.rows], self.config.loss.aggregation)
        for parameter in self.parameters:
            assert parameter.grad is not None, "see _install"
            parameter.grad.mul_(step.record.scale)
        self._update(step.record)

    def _run(self, rows: list[PackedRow], record: StepRecord) -> None:
        """Run rows forward and backward, before the step's only update."""
        for micro in self._micro_batches(rows):
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
        return self._micro_batches([row for row in rows if with_idle or not row.idle])

    def _micro_batches(self, rows: list[PackedRow]) -> list[MicroBatch]:
        config, ranks = self.config, self.ranks
        floats = torch.promote_types(self.model.dtype, torch.float32)
        cut = (config.microbatch_tokens, config.packing, ranks.rank, ranks.size)
        return micro_batches_of_rank(rows, *cut, self.device, floats)

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
        for micro in self._micro_batches(rows):
            logprobs, _, values = self._forward(micro)
            if not micro.members:
                continue
            ends = list(accumulate(len(row.columns) for row in micro.members))[:-1]
            found = [logprobs] if values is None else [logprobs, values]
            parts = [np.split(array, ends) for array in down(*found)]
            for place, row in enumerate(micro.members):
                row.before = parts[0][place].tolist()
                row.values = parts[1][place].tolist() if values is not None else None
        for known in self.ranks.gathered([(row.before, row.values) for row in rows]):
            for row, (logprobs_before, values_before) in zip(rows, known, strict=True):
                row.before, row.values = logprobs_before or row.before, values_before or row.values

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
        if micro.members:
            record.passes.append(PassRecord.of(micro, loss, before))

    def _loss(self, micro: MicroBatch, new: Tensor, before: Tensor | None, entropy: Tensor) -> TokenLoss:
        config = self.config.loss
        policy = objective(TokenBatch(new, micro.behaviour, before, micro.advantage, micro.rows), config)
        mismatch = correction(before, micro.behaviour, micro.rows, micro.segments, self.config.mismatch)
        if config.entropy_coefficient == 0:
            entropy = entropy.detach()
        return token_loss(policy, mismatch, new, entropy, self._reference_logprobs(micro))

    def _forward(self, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """For every sampled token: its log-prob, the entropy and, with a head, the value of the state before it."""
        return _scored(self.policy, micro)

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        return None if self.reference is None else _scored(self.reference, micro)[0]

    def _update(self, record: StepRecord) -> None:
        """Make one optimiser update from the accumulated gradients. It is skipped if they are not finite."""
        norm = scalar(whole(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.gradient_clip)))
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

    # ------------------------------------------------------------------------------------- the device's memory

    def wake(self) -> None:
        """Bring back to the device what is asleep, if anything is."""
        if self._asleep is not None:
            self._asleep.wake()
            self._asleep = None
            self._make_gradients()

    def _rest(self) -> None:
        """Between two steps, when gradients are 0: weights and moments to main memory."""
        if self.sleeps and self._asleep is None:
            for parameter in self.parameters:
                parameter.grad = None
            self._asleep = Asleep(self._held())

    def resident_bytes(self) -> int:
        """Of weights, gradients and moments, on the device."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return resident_bytes([*self._held(), *gradients])

    def _held(self) -> list[Tensor]:
        policies = [self.policy] if self.reference is None else [self.policy, self.reference]
        states = [one for state in self.optimizer.state.values() for one in state.values() if one.dim()]
        return [*(one for policy in policies for one in (*policy.parameters(), *policy.buffers())), *states]

    def _make_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    # --------------------------------------------------------------------------------- weights and checkpoints

    def weights(self) -> WholeWeights:
        """The current weights by their Hugging Face names, tied ones once. The next step changes these tensors."""
        if self.config.lora is not None:
            return WholeWeights(weight_sources(self.model), self.ranks)
        return WholeWeights({name: source(one) for name, one in self.model.named_parameters()}, self.ranks)

    def _to_publish(self) -> WholeWeights:
        lora = self.config.lora
        only_adapter = lora is not None and lora.sync == "adapter"
        return WholeWeights(adapter_sources(self.model), self.ranks) if only_adapter else self.weights()

    @torch.no_grad()
    def probe(self) -> tuple[float, ...]:
        """The log-probs of the probe's tokens after the first, under the current weights."""
        tokens = probe_tokens(self.model.config.vocab_size).astype(np.int64)[None]
        columns = np.arange(1, tokens.shape[1])
        heat = np.ones(len(columns), np.float32)
        there = up(self.device, tokens, np.zeros_like(columns), columns, heat)
        scored, _, _ = self.policy(there[0], None, *there[1:])
        return tuple(down(scored)[0].tolist())

    def publish(self, version: int, store: WeightStore) -> Fingerprint:
        """Push the current weights to the store, and say how they score the probe. Only rank 0 pushes, and knows the
        digests."""
        self.wake()
        self.ranks.agree(f"version {version} is published", version=self.version)
        weights = self._to_publish()
        pushed = self.ranks.led(lambda: store.push(version, weights), weights.make)
        probe = self.probe()
        self._rest()
        return replace(pushed or Fingerprint(version, ""), probe=probe)

    def save(self, folder: Path, driver: checkpoint.DriverFiles = checkpoint.NO_DRIVER) -> None:
        """Write a checkpoint, completely or not at all; `driver` is the control plane's part of it.

        First every rank writes its part into a folder that rank 0 has made; then rank 0 adds the rest and gives the
        folder its name."""
        self.wake()
        self.ranks.agree(f"checkpoint {folder.name}", version=self.version)
        weights = self.weights()

        def follow(order: Path | str) -> None:
            if isinstance(order, Path):
                write_parts(order, self._kept(), self.ranks)
            else:
                weights.make(order)

        self.ranks.led(lambda: checkpoint.write(folder, lambda new: self._fill(new, weights), driver), follow)
        self._rest()

    def _fill(self, folder: Path, weights: WholeWeights) -> None:
        self.ranks.tell(folder)
        write_parts(folder, self._kept(), self.ranks)
        write_note(folder, {"version": self.version, "ranks": self.ranks.size})
        save_model(self.model, self.tokenizer, folder, weights)

    def _kept(self) -> dict[str, Tensor]:
        """What a resume needs beside the Hugging Face files; see `load` for how the two make a trainer again."""
        own = {
            name: one for name, one in self.policy.named_parameters() if name.startswith("head.") or ".lora_" in name
        }
        return {f"parameter.{name}": one.detach() for name, one in own.items()} | moments(self.policy, self.optimizer)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint: the next step is bit for bit the same as without the interruption, if as many
        ranks make it."""
        version, found = read_note(folder)["version"], names_of_parts(folder)
        self._check_parts(folder, found)
        self.wake()
        self._install(self._loaded(folder if self.config.lora is None else self.folder))
        if any(name.startswith("optimizer.") for name in found):
            make_moments(self.policy, self.optimizer)
        read_parts(folder, self._kept(), self.ranks)
        self.version = version
        self._step = None
        self._rest()

    def _check_parts(self, folder: Path, found: set[str]) -> None:
        for mark, what, key in (
            ("parameter.head.", "value head", "training.advantage.type"),
            (".lora_", "adapter", "training.lora"),
        ):
            there, wanted = (any(mark in name for name in names) for names in (found, self._kept()))
            if there != wanted:
                state = (
                    f"has a saved {what}, but the job wants none" if there else f"has no {what}, but the job wants one"
                )
                raise RunFolderError(f"{folder} {state}: continue with the {key} the run was started with")

    def _install(self, model: Any) -> None:
        self.model = model
        if self.config.lora is not None:
            add_adapter(model, self.config.lora, self.seed)
        gae = isinstance(self.config.advantage, GAEAdvantage)
        self.head = value_head(model.config.hidden_size).to(model.device, model.dtype) if gae else None
        self.policy = self._sharded(TrainedPolicy(model, self.config, self.head))
        modules = [model] if self.head is None else [model, self.head]
        trained = [[one for one in module.parameters() if one.requires_grad] for module in modules]
        self.parameters: list[Tensor] = [parameter for some in trained for parameter in some]
        self._make_gradients()
        self.optimizer = torch.optim.AdamW(
            [{"params": some} for some in trained],
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
            fused=self.device.type != "meta",  # there is no such kernel there
        )

    def _loaded(self, folder: Path) -> Any:
        model = load_model(folder)
        move(model, self.device)
        return model

    def _reference(self) -> TrainedPolicy:
        return self._sharded(TrainedPolicy(self._loaded(self.folder).requires_grad_(False), self.config))

    def _sharded(self, policy: TrainedPolicy) -> TrainedPolicy:
        if not self.ranks.alone:
            shard(policy, self.ranks, self.config.dtype, self.device.type)
        return policy


def _scored(policy: TrainedPolicy, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor | None]:
    scored: tuple[Tensor, Tensor, Tensor | None] = policy(
        micro.tokens, micro.positions, micro.lines, micro.columns, micro.temperature
    )
    return scored


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
