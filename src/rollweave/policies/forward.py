"""The policy as a function: log-probs (and entropies) of chosen tokens in a padded micro-batch.

Two savings matter on any hardware. Rows are padded on the right and attention is causal, so no real token ever sees
padding and no mask is needed. And the vocabulary projection, the widest matrix of a small model, is applied only at
positions whose next token is asked for, in chunks, so that logits never fill the memory.

transformers draws a progress bar for every load and save; bars of a second would tear the live view.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollweave.errors import ModelError


def no_progress_bars() -> None:
    """In this process, from now on."""
    from transformers.utils import logging

    logging.disable_progress_bar()


LOGITS_AT_ONCE = 2**26
"""Elements of a chunk of logits (256 MB in float32)."""


def load_model(folder: Path) -> Any:
    """A Hugging Face causal LM in float32. Never in training mode: dropout would make new and old policy differ."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    no_progress_bars()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:  # cut short, of other shapes, half there
        raise ModelError(
            f"the weights in {folder} cannot be loaded ({error}); fetch the model again, all its files"
        ) from error
    _make_savable(model)
    return model.eval()


def _make_savable(model: Any) -> None:
    """Some published generation settings contradict each other: they load, but saving them would fail hours later."""
    from transformers import GenerationConfig

    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config = GenerationConfig.from_model_config(model.config)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the Hugging Face files of a policy into an existing folder. A full disk is an OSError, whoever met it."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def fill_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut sequences into micro-batches of at most `budget` padded tokens (a longer sequence gets its own).

    Neighbours in length go together, which keeps padding small. Deterministic: ties keep the given order.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        # Sorted from the longest: the first row of a batch decides its width.
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pad_rows(rows: Sequence[ArrayLike]) -> Tensor:
    """Token rows as one tensor, zeros on the right (no loss looks at them)."""
    arrays = [np.asarray(row, np.int64) for row in rows]
    padded = np.zeros((len(arrays), max(map(len, arrays))), np.int64)
    for place, array in enumerate(arrays):
        padded[place, : len(array)] = array
    return torch.from_numpy(padded)


def token_logprobs(
    model: Any, tokens: Tensor, rows: Tensor, columns: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token at (row, column) given what precedes it, and the entropy it was drawn with.

    Both are of the distribution softmax(logits / temperature), one temperature per token.
    """
    return logprobs_at(model, token_states(model, tokens, rows, columns), tokens[rows, columns], temperature)


def token_states(model: Any, tokens: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The hidden state that predicts each token at (row, column)."""
    hidden: Tensor = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    return hidden[rows, columns - 1]


def logprobs_at(model: Any, hidden: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and the entropy there, from the states that predict them."""
    weight: Tensor = model.get_output_embeddings().weight
    chunk = max(1, LOGITS_AT_ONCE // weight.shape[0])
    if len(targets) <= chunk:
        return _head(hidden, weight, targets, temperature)
    parts = zip(*(torch.split(t, chunk) for t in (hidden, targets, temperature)), strict=True)
    pieces = [checkpoint(_head, h, weight, t, heat, use_reentrant=False) for h, t, heat in parts]
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _head(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    logits = (hidden @ weight.T) / temperature[:, None]
    all_logprobs = torch.log_softmax(logits, dim=-1)
    entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    return all_logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
