"""The policy as the trainer calls it: one module from tokens to log-probs, entropies and values.

The weights of a sharded policy are whole only inside the call of the module they were sharded by. So everything that
needs them, the vocabulary projection and the value head too, happens in this one call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollweave.config.training import TrainingConfig
from rollweave.policies.forward import logprobs_at, token_states


class TrainedPolicy(torch.nn.Module):
    """A model and, if there is one, its value head."""

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
