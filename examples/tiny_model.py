"""A random Qwen3 with a vocabulary of bytes, and its tokenizer: enough to run a trainer on a CPU.

It writes noise, and learns nothing in a few steps. Replace it by a model that writes code.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MAX_TOKENS = 32_768


def tiny_tokenizer(chat_template: str) -> PreTrainedTokenizerFast:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=chat_template,
        padding_side="left",
        model_max_length=MAX_TOKENS,
    )


def tiny_model(
    tokenizer: PreTrainedTokenizerFast, cls: type[Qwen3ForCausalLM] = Qwen3ForCausalLM
) -> Qwen3ForCausalLM:
    """Two layers with random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        max_position_embeddings=MAX_TOKENS, tie_word_embeddings=True,
        eos_token_id=SPECIAL.index("<|im_end|>"), pad_token_id=SPECIAL.index("<|endoftext|>"),
    )  # fmt: skip
    return cls(config)
