"""Builds tiny policies: a small Qwen3 with random weights and a byte-level tokenizer, as a Hugging Face folder.

The tokenizer has the 256 bytes and five special tokens, so it can write any text and every id has a meaning.
A message needs one special token, an answer one more for its end:

    <|user|>S F F F ...<|assistant|>right<|end|><|user|>...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollweave.config.job import TinyModel
from rollweave.errors import ModelError
from rollweave.policies.atomic import atomic_folder
from rollweave.policies.forward import no_progress_bars, save_model
from rollweave.seeds import derive

END = "<|end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", END, PAD)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build(config: TinyModel, seed: int, folder: Path) -> Path:
    """Make the policy of this config and seed in `folder` (which must not exist yet)."""
    if config.heads % config.kv_heads:
        raise ModelError(f"model.heads ({config.heads}) must be a multiple of model.kv_heads ({config.kv_heads})")
    if config.head_dim % 2:
        raise ModelError(f"model.head_dim ({config.head_dim}) must be even: rotary positions turn pairs of channels")
    no_progress_bars()
    tokenizer = byte_tokenizer()
    model = _random_model(config, tokenizer, derive(seed, "tiny-model"))
    with atomic_folder(folder) as partial:
        save_model(model, tokenizer, partial)
    return folder


def byte_tokenizer() -> Any:
    """Make a tokenizer with one token per byte and no merges, so that sampled tokens always encode to themselves."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (END, PAD)],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _random_model(config: TinyModel, tokenizer: Any, seed: int) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        initializer_range=0.05,  # transformers' 0.02 is for wide layers; in narrow ones signals would start near 0
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(shape).to(torch.float32)
