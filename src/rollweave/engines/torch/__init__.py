"""The embedded engine: continuous batching for Llama, Qwen2 and Qwen3 models in plain torch."""
