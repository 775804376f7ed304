"""Computes log-probs (and entropies) of chosen tokens in a padded micro-batch; loads and saves the policy's model.

Two savings matter on any hardware. Rows are padded on the right and attention is causal, so no real token ever sees
padding and no mask is needed. And the vocabulary projection, the widest matrix of a small model, is applied only at
positions whose next token is needed, and in chunks, so that the logits never fill the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollweave.errors import ModelError

LOGITS_AT_ONCE = 2**26
"""Elements of a chunk of logits (256 MB in float32)."""


def load_model(folder: Path) -> Any:
    """Load a Hugging Face causal LM in float32, in evaluation mode: dropout would make new and old policy differ."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    no_progress_bars()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:  # truncated, of other shapes, or incomplete
        raise ModelError(
            f"the weights in {folder} cannot be loaded ({error}); fetch the model again, all its files"
        ) from error
    _make_savable(model)
    return model.eval()


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


def pad_rows(rows: Sequence[Sequence[int] | NDArray[Any]]) -> NDArray[np.int64]:
    """Make one array of the token rows, padded with zeros on the right, where no real token attends to them."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


def token_logprobs(
    model: Any, tokens: Tensor, rows: Tensor, columns: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-prob of each token at (row, column) given the tokens before it, and the entropy at that position.

    Both belong to the distribution softmax(logits / temperature), with one temperature per token.
    """
    return logprobs_at(model, token_states(model, tokens, rows, columns), tokens[rows, columns], temperature)


def token_states(model: Any, tokens: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The hidden state that predicts each token at (row, column)."""
    hidden: Tensor = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return hidden[rows, columns - 1]


def logprobs_at(model: Any, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The log-prob of each target and the entropy at its position, from the states that predict the targets."""
    weight: Tensor = model.get_output_embeddings().weight
    chunk = max(1, LOGITS_AT_ONCE // weight.shape[0])
    if len(targets) <= chunk:
        return _head(hidden, weight, targets, temperature)
    parts = zip(*(torch.split(t, chunk) for t in (hidden, targets, temperature)), strict=True)
    # There is no randomness to preserve; on a GPU looking for some would be a crossing.
    pieces = [checkpoint(_head, h, weight, t, heat, use_reentrant=False, preserve_rng_state=False) for h, t, heat in parts]
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _head(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    logits = (hidden @ weight.T).to(temperature.dtype) / temperature[:, None]
    all_logprobs = torch.log_softmax(logits, dim=-1)
    entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    return all_logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
