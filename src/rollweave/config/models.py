"""Language models as the cost model sees them: only their sizes, taken from their public `config.json`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from rollweave.config.base import NonNegative
from rollweave.config.catalogue import Catalogue, NamedSection
from rollweave.targets import nearest


class ModelSpec(NamedSection):
    """The sizes of a decoder-only transformer with grouped-query attention, dense or mixture of experts."""

    params: PositiveFloat
    """All parameters."""
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    active_params: NonNegative = 0.0
    """Parameters that one token passes through; 0: all of them (a dense model)."""
    experts: Annotated[int, Field(ge=0)] = 0
    experts_per_token: Annotated[int, Field(ge=0)] = 0
    bytes_per_value: PositiveInt = 2
    """Bytes of one value in weights and KV cache: 2 for bfloat16, 4 for float32."""
    source: str = ""

    @property
    def active(self) -> float:
        return self.active_params or self.params

    @property
    def weight_bytes(self) -> float:
        return self.params * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the keys and values of all layers; grouped-query attention keeps `kv_heads` of them, not `heads`."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value

    @property
    def attention_flops_per_pair(self) -> int:
        """Operations for one new token and one token of its context: score and weighted sum, two operations each."""
        return 4 * self.layers * self.heads * self.head_dim

    def params_read(self, tokens: float) -> float:
        """Parameters that a step with this many tokens reads. Of the experts it reads those that some token chose."""
        if not self.experts:
            return self.params
        chosen = self.experts_per_token / self.experts
        in_experts = (self.params - self.active) / (1.0 - chosen)
        unread: float = (1.0 - chosen) ** tokens
        return self.params - in_experts * unread


MODELS = Catalogue(ModelSpec, Path(__file__).with_name("models.yaml"))


def find_model(name: str, own: Iterable[ModelSpec], key: str = "model") -> ModelSpec:
    """The model that a key of a file names: one of the file's own, or of the catalogue. A model of the catalogue may be
    named as in a job file, too (Qwen/Qwen3-8B, smollm2)."""
    known = MODELS.with_own(own)
    in_catalogue = "smollm2-135m" if name == "smollm2" else name.rpartition("/")[2].lower()
    found = known.get(name) or known.get(in_catalogue)
    if found is None:
        raise ValueError(f"{key} {name!r} is not in the catalogue: add it to `models`{nearest(name, known)}")
    return found
