"""Computes log-probs (and entropies) of chosen tokens in a padded micro-batch; loads and saves the policy's model.

Two savings matter on any hardware. Rows are padded on the right and attention is causal, so no real token ever sees
padding and no mask is needed; only lines of several packed rows need one. And the vocabulary projection, the widest
matrix of a small model, is applied only at positions whose next token is needed, and in chunks, so that the logits
never fill the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollweave.config.training import TrainingConfig
from rollweave.errors import ModelError

ATTENTION = "rollweave"
LOGITS_AT_ONCE = 2**26
"""Elements of a chunk of logits (256 MB in float32)."""


def load_model(folder: Path) -> Any:
    """Load a Hugging Face causal LM in float32 into main memory, in evaluation mode: dropout would make new and old
    policy differ."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    no_progress_bars()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=_attention())
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:  # truncated, of other shapes, or incomplete
        raise ModelError(
            f"the weights in {folder} cannot be loaded ({error}); fetch the model again, all its files"
        ) from error
    _make_savable(model)
    return model.eval()


def _attention() -> str:
    """Torch's own attention, under a name for which transformers makes no mask. It would find out in every pass that
    none is needed, by reading a value from the device."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(ATTENTION, sdpa_attention_forward)
    return ATTENTION


def _make_savable(model: Any) -> None:
    """Replace generation settings that contradict each other: they load, but saving them hours later would fail."""
    from transformers import GenerationConfig

    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig.from_model_config(model.config)


def save_model(model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the Hugging Face files of a policy into an existing folder. A full disk always raises an OSError.

    `weights`: if they are others than the model itself holds, as a shard or beside an adapter."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def no_progress_bars() -> None:
    """Turn off the progress bars of transformers in this process, because they would destroy the live view."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def fill_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Divide sequences into micro-batches of at most `budget` padded tokens (a longer sequence gets its own).

    Sequences of similar length go together, which keeps padding small. Sequences of equal length keep their order, so
    the result is deterministic.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # The longest sequences come first, so the first row of a batch determines its width.
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pack_rows(lengths: Sequence[int], budget: int) -> list[list[list[int]]]:
    """Divide sequences into micro-batches of lines that hold one or more of them, at most `budget` tokens with padding.

    Every line is as wide as the longest sequence. The longest come first, each into the first line with room: nearly no
    padding is left, and no line is longer than it would be without packing.
    """
    width = max(lengths, default=1)
    lines: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        line = next((line for line, left in enumerate(room) if left >= lengths[index]), len(lines))
        if line == len(lines):
            lines.append([])
            room.append(width)
        lines[line].append(index)
        room[line] -= lengths[index]
    at_once = max(1, budget // width)
    return [lines[i : i + at_once] for i in range(0, len(lines), at_once)]


def pad_rows(rows: Sequence[Sequence[int] | NDArray[Any]]) -> NDArray[np.int64]:
    """Make one array of the token rows, padded with zeros on the right, where no real token attends to them."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


def token_logprobs(
    model: Any, tokens: Tensor, lines: Tensor, columns: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-prob of each token at (line, column) given the tokens before it, and the entropy at that position.

    Both belong to the distribution softmax(logits / temperature), with one temperature per token.
    """
    return logprobs_at(model, token_states(model, tokens, lines, columns), tokens[lines, columns], temperature)


def token_states(model: Any, tokens: Tensor, lines: Tensor, columns: Tensor, positions: Tensor | None = None) -> Tensor:
    """The hidden state that predicts each token at (line, column). `positions`: of tokens in lines of several rows."""
    mask = None if positions is None else own_row_mask(positions)
    hidden: Tensor = model.model(
        input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    return hidden[lines, columns - 1]


def own_row_mask(positions: Tensor) -> Tensor:
    """Which tokens each token of a line attends to: those of its own row up to itself. [lines, 1, width, width]"""
    rows = (positions == 0).cumsum(-1)  # a row begins at position 0, and so does every token of the padding
    columns = torch.arange(positions.shape[-1], device=positions.device)
    return ((rows[:, :, None] == rows[:, None, :]) & (columns[:, None] >= columns))[:, None]


def logprobs_at(model: Any, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The log-prob of each target and the entropy at its position, from the states that predict the targets."""
    weight: Tensor = model.get_output_embeddings().weight
    chunk = max(1, LOGITS_AT_ONCE // weight.shape[0])
    if len(targets) <= chunk:
        return _head(hidden, weight, targets, temperature)
    parts = zip(*(torch.split(t, chunk) for t in (hidden, targets, temperature)), strict=True)
    # There is no randomness to preserve, and on a GPU a look at its generator would be a crossing.
    head = partial(checkpoint, _head, use_reentrant=False, preserve_rng_state=False)
    pieces = [head(h, weight, t, heat) for h, t, heat in parts]
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _head(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    logits = (hidden @ weight.T).to(temperature.dtype) / temperature[:, None]
    all_logprobs = torch.log_softmax(logits, dim=-1)
    entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    return all_logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy


class TrainedPolicy(torch.nn.Module):
    """The policy as the trainer calls it: a model and, if there is one, its value head.

    The weights of a sharded policy are whole only inside the call of the module they were sharded by. So all that
    needs them, the vocabulary projection and the value head too, happens in this one call.
    """

    def __init__(self, model: Any, config: TrainingConfig, head: torch.nn.Linear | None = None) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self._half = config.dtype == "bfloat16"
        if config.activation_checkpointing:
            for layer in model.model.layers:  # not transformers' own switch, which asks for training mode
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)

    def forward(
        self, tokens: Tensor, positions: Tensor | None, lines: Tensor, columns: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """For each token at (line, column): its log-prob, the entropy and, with a head, the value of the state before
        it."""
        with self._precision(tokens.device.type):
            states = token_states(self.model, tokens, lines, columns, positions)
            values = None if self.head is None else self.head(states).squeeze(-1).to(temperature.dtype)
            logprobs, entropies = logprobs_at(self.model, states, tokens[lines, columns], temperature)
        return logprobs, entropies, values

    def _precision(self, device: str) -> AbstractContextManager[Any]:
        """Matrix products in bfloat16 if the job says so; sums and exponentials stay in float32, and so do weights."""
        return torch.autocast(device, torch.bfloat16) if self._half else nullcontext()
