"""What runs inside vLLM's own worker: drawing tokens, and loading weights. vLLM imports this module there.

Weights lie in one file of shared memory, which the worker maps. They are loaded as a checkpoint is, layer by layer,
because the live parameters of the CPU build are packed and cannot be written to.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from rollweave.engines.torch.sampling import draw
from rollweave.engines.vllm.wire import ORDER, DrawOrder, write_draws

BACKEND = "rollweave"
"""The name of the weight transfer."""


class WorkerExtension:
    """vLLM mixes it into its worker; its module registers the weight transfer when it is imported."""


@dataclass
class MappingInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM's classes are untyped here
    path: str


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The tensors in the file, by their Hugging Face names."""

    names: list[str]
    shapes: list[list[int]]
    starts: list[int]


class SharedMemoryTransfer(WeightTransferEngine):  # type: ignore[misc]
    init_info_cls = MappingInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: MappingInfo) -> None:
        with Path(init_info.path).open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 0)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        self.model.load_weights(self._tensors(update_info))

    def _tensors(self, info: UpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape, start in zip(info.names, info.shapes, info.starts, strict=True):
            count = torch.Size(shape).numel()
            tensor = torch.frombuffer(self._bytes, dtype=torch.float32, count=count, offset=start)
            yield name, tensor.reshape(shape).to(self.device)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        pack_tied_heads(self.model)

    def shutdown(self) -> None:
        pass  # the mapping goes with the process

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        raise AssertionError("not called: weights come from the store, through the adapter")


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryTransfer)


def pack_tied_heads(model: torch.nn.Module) -> None:
    """Pack the head of a model that ties it to the embedding. The reload of 0.32 loads the embedding only, and the head
    keeps a packed copy of the old matrix; its log-probs would be of no version at all."""
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and module.weight.numel() and module.weight.device.type == "cpu":
            module.quant_method.process_weights_after_loading(module)


@dataclass(slots=True)
class _Row:
    order: DrawOrder
    drawn: list[int]
    """vLLM's own list, which grows."""


class DrawTokens(LogitsProcessor):  # type: ignore[misc]
    """Draws the token of each row, and lets the row say which and how likely it was (see `wire`)."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._rows, batch_update, _row_of)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows = sorted(row for row in self._rows if row < len(logits))
        if rows:
            orders = [self._rows[row].order for row in rows]
            places = [self._rows[row].order.place + len(self._rows[row].drawn) for row in rows]
            draws = draw(logits[rows], [o.sampling for o in orders], [o.seed for o in orders], places)
            write_draws(logits, rows, draws)
        return logits


def _row_of(params: Any, prompt: list[int] | None, drawn: list[int]) -> _Row | None:
    """None for a request that is only scored."""
    order = (params.extra_args or {}).get(ORDER)
    return None if order is None else _Row(DrawOrder.unpacked(order), drawn)
