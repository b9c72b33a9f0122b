"""A BPE tokenizer trained on the run's own texts, saved for `tokenizers` and transformers.

Called by `init_model`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# Added, not special: the model writes them as text, and `skip_special_tokens` must keep them.
THINKING = ("<think>", "</think>")
# Text of the chat template; it must not cost several tokens in each message.
_TEMPLATE_WORDS = ("system\n", "user\n", "assistant\n")

# Pieces before BPE, made for Python: a line break with the indentation of the next line; words and
# names with the space before them; single digits, so that a number is tokenised the same
# everywhere; runs of punctuation.
_PIECES = (
    r"[\r\n]+[ \t]*(?:[\p{L}_]+ =)?|[ \t]{2,}| ?[\p{L}_.]+\(?|\p{N}| ?[^\s\p{L}\p{N}_.]+|\s|\."
)


def train_tokenizer(texts: Sequence[str], *, vocab_size: int) -> Tokenizer:
    """Train byte-level BPE with at most `vocab_size` entries. The same texts give the same ids."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(THINKING),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = ["".join(_TEMPLATE_WORDS)] * max(1, len(texts))
    tokenizer.train_from_iterator([*texts, *words], trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in THINKING])
    return tokenizer


def save_tokenizer(
    tokenizer: Tokenizer, model_dir: Path, *, chat_template: Path, max_tokens: int
) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(model_dir / "tokenizer.json"))
    config = {
        # The class that reads tokenizer.json unchanged; Qwen2Tokenizer would insert its own
        # pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
    }
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (model_dir / "chat_template.jinja").write_text(chat_template.read_text())
