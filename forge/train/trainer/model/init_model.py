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

from forge.process.lease import hold_lease
from forge.train.durable import whole_dir

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen3ForCausalLM

logger = logging.getLogger(__name__)

CHAT_TEMPLATE = Path(__file__).parents[3] / "data" / "chat_template.jinja"


def main() -> None:
    """Make the model of the config."""
    config = hold_lease()
    from forge.train.trainer.child.settings import start_logging

    start_logging()
    with Path(config["texts_path"]).open() as lines:
        texts = [json.loads(line) for line in lines]
    made = make_model(
        config["tiny"], texts=texts, model_dir=Path(config["model_dir"]), seed=config["seed"]
    )
    Path(config["result_path"]).write_text(json.dumps(made))
    logger.info("made %s: %s", config["model_dir"], made)


def make_model(
    tiny: Mapping[str, Any], *, texts: Sequence[str], model_dir: Path, seed: int
) -> dict[str, int]:
    """Write the model directory. Returns `num_parameters` and the tokenizer's `vocab_size`."""
    from forge.train.trainer.model.tokenizer import save_tokenizer, train_tokenizer

    tokenizer = train_tokenizer(texts, vocab_size=tiny["vocab_size"])
    model = random_qwen3(tiny, tokenizer=tokenizer, seed=seed)
    with whole_dir(model_dir) as partial:
        model.save_pretrained(str(partial))
        save_tokenizer(
            tokenizer,
            partial,
            chat_template=CHAT_TEMPLATE,
            max_tokens=tiny["max_context_tokens"],
        )
    num_parameters = sum(p.numel() for p in model.parameters())
    return {"num_parameters": num_parameters, "vocab_size": tokenizer.get_vocab_size()}


def random_qwen3(tiny: Mapping[str, Any], *, tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    """A Qwen3 of the given sizes with random weights."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    from forge.train.trainer.model.tokenizer import END_OF_TEXT, TURN_END

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


if __name__ == "__main__":
    main()
