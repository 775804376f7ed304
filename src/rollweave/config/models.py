"""Language models as the cost model sees them: only their sizes, taken from their public `config.json`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from rollweave.config.base import Section


class ModelSpec(Section):
    """The sizes of a decoder-only transformer with grouped-query attention, dense or mixture of experts."""

    name: str
    params: PositiveFloat
    """All parameters."""
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    active_params: Annotated[float, Field(ge=0.0)] = 0.0
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


def catalogue_name(name: str) -> str:
    """The name in the catalogue of a model that is named as in a job file: Qwen/Qwen3-8B, smollm2."""
    return "smollm2-135m" if name == "smollm2" else name.rpartition("/")[2].lower()


HUGGING_FACE = "config.json of the model on Hugging Face"

MODELS: dict[str, ModelSpec] = {
    model.name: model
    for model in (
        ModelSpec(
            name="qwen3-8b",
            params=8.19e9,
            layers=36,
            hidden=4096,
            heads=32,
            kv_heads=8,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="qwen3-14b",
            params=14.77e9,
            layers=40,
            hidden=5120,
            heads=40,
            kv_heads=8,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="qwen3-32b",
            params=32.76e9,
            layers=64,
            hidden=5120,
            heads=64,
            kv_heads=8,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="qwen3-30b-a3b",
            params=30.53e9,
            active_params=3.35e9,
            experts=128,
            experts_per_token=8,
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="qwen2.5-7b",
            params=7.62e9,
            layers=28,
            hidden=3584,
            heads=28,
            kv_heads=4,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="qwen2.5-14b",
            params=14.77e9,
            layers=48,
            hidden=5120,
            heads=40,
            kv_heads=8,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="qwen2.5-32b",
            params=32.76e9,
            layers=64,
            hidden=5120,
            heads=40,
            kv_heads=8,
            head_dim=128,
            source=HUGGING_FACE,
        ),
        ModelSpec(
            name="smollm2-135m",
            params=134.5e6,
            layers=30,
            hidden=576,
            heads=9,
            kv_heads=3,
            head_dim=64,
            bytes_per_value=4,
            source=f"{HUGGING_FACE}; float32, as the embedded engine runs it",
        ),
        ModelSpec(
            name="tiny",
            params=1.24e5,
            layers=2,
            hidden=64,
            heads=4,
            kv_heads=4,
            head_dim=16,
            bytes_per_value=4,
            source="the default `model: {type: tiny}` of a job, float32",
        ),
    )
}
