"""Where a version waits for vLLM: one file in shared memory, which adapter and worker map.

It is filled in the background, and every tensor is checked against the model's config first: vLLM would accept a part
of the weights without a word, and could not be repaired after a tensor of another shape.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rollweave.engines.protocol import Pull
from rollweave.errors import ModelError
from rollweave.weights.buckets import Fingerprint, RawTensor

ALIGNED = 64
ITEM_BYTES = 4
"""Of a float32, in which the trainer publishes."""


def parameter_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The parameters of a Hugging Face folder as the trainer names them, tied ones once. Loads no weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


class WeightMapping:
    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.path = path
        self._shapes = dict(sorted(shapes.items()))  # the tensors of a layer lie together, as vLLM loads them
        self._starts: dict[str, int] = {}
        end = 0
        for name, shape in self._shapes.items():
            self._starts[name] = end
            end += -(-ITEM_BYTES * int(np.prod(shape)) // ALIGNED) * ALIGNED
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, end)  # else a full tmpfs kills the process that writes to it
        except OSError as error:
            raise ModelError(
                f"vLLM's weights need {end / 1e6:.0f} MB in {path.parent} ({error}); in a container enlarge /dev/shm "
                "(docker run --shm-size=4g), or use engine.type=torch"
            ) from error
        self._bytes = np.memmap(path, np.uint8, "r+")

    def fill(self, pull: Pull) -> Fingerprint:
        """Pull a version into the file: every parameter of the model, and nothing that does not fit."""
        missing = set(self._shapes)

        def put(name: str, tensor: RawTensor) -> None:
            if name in missing:  # a tied head or a buffer may come too
                self._put(name, tensor)
                missing.remove(name)

        fingerprint = pull(put)
        if missing:
            raise ModelError(
                f"the weights lack {min(missing)!r}: pass the model's full state dict, named as in Hugging Face"
            )
        return fingerprint

    def _put(self, name: str, tensor: RawTensor) -> None:
        if (tensor.dtype, tensor.shape) != ("float32", self._shapes[name]):
            raise ModelError(
                f"{name!r} came as {tensor.dtype} {tensor.shape}, but the model's config says float32 "
                f"{self._shapes[name]}: publish the weights of this model, in float32"
            )
        start = self._starts[name]
        self._bytes[start : start + tensor.data.size] = tensor.data

    def index(self) -> dict[str, list[str] | list[int] | list[list[int]]]:
        """Where each tensor lies, for the worker."""
        return {
            "names": list(self._shapes),
            "shapes": [list(shape) for shape in self._shapes.values()],
            "starts": list(self._starts.values()),
        }
