"""`python -m forge.train.trainer.model.init_model CONFIG.json`: a random Qwen3 and a tokenizer
trained on the run's texts.

Config: `tiny` (the [model.tiny] table), `texts_path` (JSON lines, a string each), `model_dir`,
`seed`, `result_path`. The model directory appears when it is complete; the result file holds the
sizes. The same seed and texts give the same bytes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from forge.process.lease import collector_paused, end_process, hold_lease
from forge.train.checkpoints import whole_dir

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

logger = logging.getLogger(__name__)

CHAT_TEMPLATE = Path(__file__).parents[3] / "data" / "chat_template.jinja"
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


def main() -> None:
    config = hold_lease()
    with collector_paused():  # to the end: this process makes one model
        from forge.train.trainer.child.settings import start_logging

        start_logging()
        with Path(config["texts_path"]).open() as lines:
            texts = [json.loads(line) for line in lines]
        made = make_model(
            config["tiny"], texts=texts, model_dir=Path(config["model_dir"]), seed=config["seed"]
        )
    Path(config["result_path"]).write_text(json.dumps(made))
    logger.info("made %s: %s", config["model_dir"], made)
    end_process()


def make_model(
    tiny: Mapping[str, Any], *, texts: Sequence[str], model_dir: Path, seed: int
) -> dict[str, int]:
    """Write the model directory. Returns `num_parameters` and the tokenizer's `vocab_size`."""
    tokenizer = train_tokenizer(texts, vocab_size=tiny["vocab_size"])
    model = random_qwen3(tiny, tokenizer=tokenizer, seed=seed)
    with whole_dir(model_dir) as partial:
        model.save_pretrained(str(partial))
        save_tokenizer(tokenizer, partial, max_tokens=tiny["max_context_tokens"])
    num_parameters = sum(p.numel() for p in model.parameters())
    return {"num_parameters": num_parameters, "vocab_size": tokenizer.get_vocab_size()}


def random_qwen3(tiny: Mapping[str, Any], *, tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    end, pad = tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)
    config = Qwen3Config(
        vocab_size=tiny["vocab_size"],
        hidden_size=tiny["hidden_size"],
        intermediate_size=tiny["intermediate_size"],
        num_hidden_layers=tiny["num_layers"],
        num_attention_heads=tiny["num_heads"],
        num_key_value_heads=tiny["num_kv_heads"],
        head_dim=tiny["head_dim"],
        initializer_range=tiny["initializer_range"],
        max_position_embeddings=tiny["max_context_tokens"],
        tie_word_embeddings=tiny["tie_word_embeddings"],
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=[end, pad], pad_token_id=pad
    )
    return model


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


def save_tokenizer(tokenizer: Tokenizer, model_dir: Path, *, max_tokens: int) -> None:
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
    (model_dir / "chat_template.jinja").write_text(CHAT_TEMPLATE.read_text())


if __name__ == "__main__":
    main()
