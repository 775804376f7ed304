"""vLLM's worker with the bug that the probe is for: after an update a tied head keeps its packed copy of the old one."""

from rollweave.engines.vllm import worker
from rollweave.engines.vllm.worker import DrawTokens, WorkerExtension

worker.pack_tied_heads = lambda model: None

__all__ = ["DrawTokens", "WorkerExtension"]
