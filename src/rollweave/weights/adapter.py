"""AdapterStore: only the small matrices of an adapter travel; each engine adds them to the policy that it started from.

    trainer ──A, B──▶ store ──A, B──▶ engine: W from the policy's folder, W + B A into the engine

W is read from the folder at each update, tensor by tensor, so no engine holds it a second time. Digests are those of
what travels; that the sums are right is what the probe shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollweave.weights.buckets import Fingerprint, Into, RawTensor, WeightMismatch
from rollweave.weights.store import WeightStore

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
"""How the two matrices of a layer are called: its name and one of these. W becomes W + UP DOWN."""


@dataclass(frozen=True, slots=True)
class AdapterStore:
    """A store, as engines see it: a version is a whole policy, though only its adapter was pushed."""

    store: WeightStore
    policy: Path
    """The folder that the trainer started from too."""

    def push(self, version: int, tensors: Mapping[str, Any]) -> Fingerprint:
        return self.store.push(version, tensors)

    def pull(self, version: int, into: Into) -> Fingerprint:
        adapter: dict[str, Any] = {}

        def keep(name: str, tensor: RawTensor) -> None:
            adapter[name] = _tensor(tensor).clone()

        found = self.store.pull(version, keep)
        for name, base in _tensors(self.policy):
            layer = name.removesuffix(".weight")
            down, up = adapter.pop(layer + DOWN, None), adapter.pop(layer + UP, None)
            base = base.float()  # as the trainer loads it
            into(name, RawTensor.of(base if down is None or up is None else low_rank_sum(base, down, up)))
        if adapter:
            raise WeightMismatch(
                f"version {version} of the weights is an adapter for layers that the policy in {self.policy} does not "
                f"have, as {min(adapter)}: trainer and engine must start from the same folder"
            )
        return found

    def latest(self) -> int | None:
        return self.store.latest()


def low_rank_sum(base: Any, down: Any, up: Any) -> Any:
    """A layer's weights with its adapter's. Trainer and engine both call this, so that they get the same."""
    return base + up @ down


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """The weights in a Hugging Face folder, by name."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                yield name, file.get_tensor(name)


def _tensor(raw: RawTensor) -> Any:
    import torch

    return torch.from_numpy(raw.data).view(getattr(torch, raw.dtype)).reshape(raw.shape)
