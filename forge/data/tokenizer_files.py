"""The tokenizer of a model directory, its special tokens by name, and the ids that end an answer.

Read by `ChatTemplate.load`. A file that is missing or broken is a ConfigError of one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forge.data.template import read_object
from forge.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

_SPECIAL_NAMES = tuple(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """The tokenizer of a model directory. Raises ConfigError."""
    from tokenizers import Tokenizer

    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path}: not found; {lacks_tokenizer(model_dir)}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what `tokenizers` raises for a broken file
        raise ConfigError(f"{path}: no tokenizer: {' '.join(str(error).split())}") from None
    if not tokenizer.get_vocab_size(with_added_tokens=False):
        raise ConfigError(f"{path}: its vocabulary is empty")
    return tokenizer


def lacks_tokenizer(model_dir: Path) -> str:
    """A line about a model directory without tokenizer.json, with what converts another file."""
    others = ("tokenizer.model", "vocab.json", "vocab.txt")
    found = next((name for name in others if (model_dir / name).is_file()), None)
    if found is None:
        return "a model directory needs tokenizer.json"
    command = f"AutoTokenizer.from_pretrained('{model_dir}').save_pretrained('{model_dir}')"
    code = f"from transformers import AutoTokenizer; {command}"
    return f'found {found} alone; python -c "{code}" converts it'


def special_names(model_dir: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, each of which may be a text or an object; null means none."""
    found = {**read_object(model_dir / "special_tokens_map.json"), **config}
    named = {key: found.get(key) for key in _SPECIAL_NAMES}
    texts = {k: t.get("content") if isinstance(t, Mapping) else t for k, t in named.items()}
    return {key: text for key, text in texts.items() if text and isinstance(text, str)}


def stop_ids(model_dir: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    """Ids of the tokenizer's end of sequence and of generation_config.json's, or config.json's if
    neither is a token. Raises ConfigError for none."""
    eos = None if eos_token is None else tokenizer.token_to_id(eos_token)
    ids = [] if eos is None else [eos]
    for name in ("generation_config.json", "config.json"):
        config = {} if ids and name == "config.json" else read_object(model_dir / name)
        found = config.get("eos_token_id")
        for number in found if isinstance(found, list) else [] if found is None else [found]:
            if not isinstance(number, int):
                text = f"{model_dir / name}: eos_token_id: found {json.dumps(found)}"
                raise ConfigError(f"{text}; a number, or a list of them")
            if number >= 0 and tokenizer.id_to_token(number) is not None:
                ids.append(number)
    if not ids:
        raise ConfigError(
            f"{model_dir}: no eos_token in tokenizer_config.json that tokenizer.json has, "
            "and no eos_token_id in generation_config.json"
        )
    return tuple(dict.fromkeys(ids))
