"""vLLM's worker with the bug that the probe is for: a tied head stays what it was before an update."""

from rollweave.engines.vllm import worker
from rollweave.engines.vllm.worker import DrawTokens, WorkerExtension

worker.pack_tied_heads = lambda model: None

__all__ = ["DrawTokens", "WorkerExtension"]
