"""LoRA: the weights of a policy stay as they are, and small matrices beside its linear layers are trained (peft).

A layer computes with W + B A, where A and B have few rows or columns; A starts at random and B at 0, so a new adapter
changes nothing. B here is times alpha / rank, which peft keeps apart. Engines get the sums under the names of W
(`merged`), or only A and B (`adapter`), and then add them up themselves (`rollweave.weights.adapter`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rollweave.config.training import LoraConfig
from rollweave.errors import ConfigError
from rollweave.seeds import derive
from rollweave.training.ranks import Source, source, whole
from rollweave.weights.adapter import DOWN, UP, low_rank_sum

NAME = "default"
"""peft's name of the only adapter."""
BASE = ".base_layer"
"""What peft adds to the name of a layer that has one."""


def add_adapter(model: Any, config: LoraConfig, seed: int) -> None:
    """Put a new adapter beside the layers of a model, in place; nothing else of it is trained any more."""
    peft = _peft()
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=list(config.targets), lora_dropout=0.0, bias="none"
    )
    with torch.random.fork_rng(devices=()):  # every rank draws the same
        torch.manual_seed(derive(seed, "lora"))
        try:
            peft.inject_adapter_in_model(settings, model, NAME)
        except ValueError as error:
            linear = sorted({name.rpartition(".")[2] for name, one in model.named_modules() if _is_linear(one)})
            raise ConfigError(
                f"training.lora.targets: the model has no layers called {', '.join(config.targets)} ({error}); its "
                f"linear layers: {', '.join(linear)}"
            ) from error


def weight_sources(model: Any) -> dict[str, Source]:
    """The whole policy by its Hugging Face names: layers with an adapter as the sum of both."""
    layers = _adapted(model)
    sources: dict[str, Source] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        layer = layers.get(name.removesuffix(".weight").removesuffix(BASE)) if name.endswith(".weight") else None
        sources[name.replace(BASE, "")] = source(parameter) if layer is None else _sum(parameter, layer)
    return sources


def adapter_sources(model: Any) -> dict[str, Source]:
    """The adapter alone: for each layer A and B, named after it."""
    sources: dict[str, Source] = {}
    for name, layer in _adapted(model).items():
        sources[f"{name}{DOWN}"] = source(layer.lora_A[NAME].weight)
        sources[f"{name}{UP}"] = _up(layer)
    return sources


def adapter_parameters(model: Any) -> Mapping[str, Tensor]:
    """What a checkpoint keeps of an adapter."""
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def _adapted(model: Any) -> dict[str, Any]:
    """The layers with an adapter, by name."""
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A") and NAME in layer.lora_A}


def _up(layer: Any) -> Source:
    return lambda: whole(layer.lora_B[NAME].weight) * layer.scaling[NAME]


def _sum(parameter: Tensor, layer: Any) -> Source:
    up, down = _up(layer), source(layer.lora_A[NAME].weight)
    return lambda: low_rank_sum(whole(parameter), down(), up())


def _is_linear(module: Any) -> bool:
    return isinstance(module, torch.nn.Linear)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError("training.lora needs the package peft: pip install 'rollweave[lora]'") from error
    return peft
