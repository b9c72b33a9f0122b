"""The vocabulary of an exported GGUF file: the tokens of a tokenizer.json, the tokens that end an
answer, the chat template, and the way to split a text.

llama.cpp does not read a tokenizer's rules: it has sets of them, by name. `choose` takes the one
with which llama.cpp turns texts into the same tokens as the tokenizer does, and counts the texts if
none is right for all. Promise: what llama.cpp would abort on (a token twice, an id outside of the
vocabulary) is not written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer

from forge.errors import ConfigError

Rules = Mapping[str, str | bool]
MODEL, PRE = gguf.Keys.Tokenizer.MODEL, gguf.Keys.Tokenizer.PRE
SPACE = gguf.Keys.Tokenizer.ADD_PREFIX
SPLITS = (
    "qwen2 llama-bpe gpt-2 smollm qwen35 gpt-4o tekken deepseek-v3 deepseek-llm deepseek-coder "
    "starcoder falcon mpt olmo stablelm2 command-r dbrx smaug-bpe chatglm-bpe glm4 viking "
    "poro-chat bloom exaone exaone4 exaone-moe chameleon minerva-7b trillion bailingmoe "
    "seed-coder hunyuan hunyuan-dense kimi-k2 grok-2 afmoe minimax-m2 superbpe youtu jais-2 "
    "tiny_aya minicpm5 laguna default"
)
"""llama.cpp's sets of rules for byte-level tokens, those of known models first."""
BYTE_LEVEL: tuple[Rules, ...] = tuple({MODEL: "gpt2", PRE: name} for name in SPLITS.split())
PIECES: tuple[Rules, ...] = (
    {MODEL: "llama", PRE: "default", SPACE: False},
    {MODEL: "llama", PRE: "default", SPACE: True},
    {MODEL: "gemma4", PRE: "gemma4"},
)
"""Its sets for tokens with "▁" for a space and bytes for what has no token."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
PROBES = (
    "Write a Triton kernel that adds two vectors.",
    "@triton.jit\ndef kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n    pid = tl.program_id(0)\n",
    "        offs = pid * BLOCK + tl.arange(0, BLOCK)\n        mask = offs < n\n\n\n    return x",
    "It's we'll I'M don't YOU'RE she'd 've",
    "1 12 123 1234 12345 3.14159 0x7fff 1e-5 2026-11-28",
    "a  b   c    d\t\te \n f\r\n\r\ng \n\n \n",
    " leading and trailing ",
    "HTTPServer camelCase snake_case __init__ SCREAMING_CASE x1y2",
    "!= == <= ... ?!?! ((())) [[]] {} #include <a.h> // --- === /* */ a/b\\c",
    "Größe naïve ÄÖÜß Ελληνικά Русский עברית العربية हिन्दी ไทย",
    "中文没有空格。日本語のテキスト 한국어 문장",
    "🙂🚀 👩‍💻 ∑∫√ → ≤ ½ ②",
    "$100 50% a@b.com https://example.org/?q=1&r=2 'quoted' \"double\"",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything about tokens that a GGUF file says, but for the rules."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    """Order of merges by the token that they make; empty for byte-level tokens."""
    special: gguf.SpecialVocab

    @property
    def rules(self) -> tuple[Rules, ...]:
        return PIECES if self.scores else BYTE_LEVEL

    def add_to(self, writer: gguf.GGUFWriter, rules: Rules) -> None:
        for key, value in rules.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            else:
                writer.add_string(key, value)
        writer.add_token_list(list(self.tokens))
        writer.add_token_types(list(self.types))
        if self.scores:
            writer.add_token_scores(list(self.scores))
        self.special.add_to_gguf(writer, quiet=True)


def read_vocabulary(
    model_dir: Path, *, num_rows: int, stop_ids: Sequence[int], template: str
) -> Vocabulary:
    """Read a model directory.

    Args:
        num_rows: tokens of the embedding; those without a text are unused.
        stop_ids: tokens that end an answer; llama.cpp has room for three.

    Raises:
        ConfigError: llama.cpp has no such kind of tokenizer.
    """
    path = model_dir / "tokenizer.json"
    found = json.loads(path.read_text())
    model: Mapping[str, Any] = found["model"]
    is_byte_level = '"ByteLevel"' in json.dumps(found.get("pre_tokenizer"))
    if model.get("type", "BPE") != "BPE" or not (is_byte_level or model.get("byte_fallback")):
        raise ConfigError(
            f"{path}: a tokenizer of type {model.get('type')}; llama.cpp reads byte-level BPE, and"
            " BPE with a token for each byte"
        )
    texts, types = _tokens(found, num_rows=num_rows)
    special = _special(model_dir, num_rows=num_rows, stop_ids=stop_ids)
    special.chat_template = template
    return Vocabulary(
        tokens=tuple(texts),
        types=tuple(types),
        scores=() if is_byte_level else tuple(_scores(texts, special.merges)),
        special=special,
    )


def _tokens(found: Mapping[str, Any], *, num_rows: int) -> tuple[list[str], list[int]]:
    """Text and type of every row; each text once, as llama.cpp needs them."""
    model = found["model"]
    kind = gguf.TokenType
    texts = [f"[PAD{row}]" for row in range(num_rows)]
    types = [int(kind.UNUSED)] * num_rows
    for text, token in model["vocab"].items():
        if token < num_rows:
            is_byte = model.get("byte_fallback") and BYTE.fullmatch(text)
            texts[token], types[token] = text, kind.BYTE if is_byte else kind.NORMAL
    for added in found.get("added_tokens", ()):
        if (token := added["id"]) < num_rows:
            text = added["content"] if added["special"] else added["content"].replace("▁", " ")
            types[token] = kind.CONTROL if added["special"] else kind.USER_DEFINED
            texts[token] = text
    unknown = model.get("unk_token")
    seen: set[str] = set()
    for token, text in enumerate(texts):
        if text == unknown and types[token] != kind.NORMAL:
            types[token] = kind.UNKNOWN
        # A text ends at a zero byte there.
        while not text or "\0" in text or text in seen:
            text, types[token] = f"[PAD{token}]" if text != f"[PAD{token}]" else "_", kind.UNUSED
        texts[token] = text
        seen.add(text)
    return texts, types


def _scores(texts: Sequence[str], merges: Sequence[str]) -> list[float]:
    """llama.cpp merges the two pieces whose token has the highest score: the earliest merge."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair.replace(" ", ""), rank)
    return [-float(ranks.get(text, len(merges))) for text in texts]


def _special(model_dir: Path, *, num_rows: int, stop_ids: Sequence[int]) -> gguf.SpecialVocab:
    """Merges, the tokens that begin and end a text, and whether a text begins with the first."""
    from tokenizers import Tokenizer

    kinds = ("bos", "unk", "pad")
    found = gguf.SpecialVocab(model_dir, True, special_token_types=kinds, n_vocab=num_rows)
    ids = found.special_token_ids
    ids |= zip(("eos", "eot", "eom"), stop_ids, strict=False)
    bos = ids.setdefault("bos", stop_ids[0])  # without one llama.cpp takes token 11 or 1
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    plain, whole = (tokenizer.encode("a", add_special_tokens=each).ids for each in (False, True))
    found.add_special_token = {"bos": len(whole) > len(plain) and whole[0] == bos, "eos": False}
    return found


def choose(path: Path, rules: Sequence[Rules], tokenizer: Tokenizer) -> tuple[Rules, int]:
    """The first set of rules with which llama.cpp and the tokenizer agree in all PROBES, or else in
    most, with the number of PROBES in which they do.

    Args:
        path: a GGUF file with a vocabulary, whose own rules are overridden.
    """
    wanted = [tokenizer.encode(text, add_special_tokens=False).ids for text in PROBES]
    best: tuple[Rules, int] = rules[0], -1
    for each in rules:
        found = tokens_of(path, PROBES, each)
        agreeing = sum(a == b for a, b in zip(found, wanted, strict=False))
        if agreeing > best[1]:
            best = each, agreeing
        if agreeing == len(wanted):
            break
    return best


def tokens_of(path: Path, texts: Sequence[str], rules: Rules) -> list[list[int]]:
    """llama.cpp's tokens of texts; none with rules that this build does not know."""
    import llama_cpp

    try:
        model = llama_cpp.Llama(
            str(path), vocab_only=True, verbose=False, kv_overrides=dict(rules), n_ctx=8
        )
    except ValueError:
        return []
    with closing(model):
        return [model.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
