"""`python -m forge.serve.llama.export CONFIG.json`: writes a model as a GGUF file with vocabulary
and chat template, then loads it in plain llama-cpp-python and chats with it.

Config: `model_dir`, `path` of the file, `name` of the model, `template`, `question`, its
`prompt_ids`, `stop_ids`, `num_tokens`, `threads`, `result_path`. The result file holds the
generated ids, and in `note` what llama.cpp does otherwise than the tokenizer.

llama.cpp does not read a tokenizer's rules: it has sets of them, by name. `choose` takes the one
with which llama.cpp turns texts into the same tokens as the tokenizer does, and counts the texts if
none is right for all. Promise: what llama.cpp would abort on (a token twice, an id outside of the
vocabulary) is not written.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from tokenizers import Tokenizer

from forge.errors import ConfigError
from forge.process.lease import hold_lease
from forge.serve.checkpoint_files import read_json
from forge.serve.llama.checkpoint import Checkpoint, Precision, open_weights, write_model, written

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
    try:
        model = llama_cpp.Llama(
            str(path), vocab_only=True, verbose=False, kv_overrides=dict(rules), n_ctx=8
        )
    except ValueError:
        return []
    with closing(model):
        return [model.tokenize(text.encode(), add_bos=False, special=True) for text in texts]


KV_F32 = 0


def main() -> None:
    config = hold_lease()
    logging.getLogger("gguf").setLevel(logging.WARNING)
    Path(config["result_path"]).write_text(json.dumps(export(config)))


def export(config: Mapping[str, Any]) -> dict[str, Any]:
    """Write the file and generate greedily with it. Raises ConfigError for an architecture or a
    tokenizer that llama.cpp does not have."""
    model_dir, path = Path(config["model_dir"]), Path(config["path"])
    is_bf16 = read_json(model_dir / "config.json").get("dtype") == "bfloat16"
    precision = Precision.FAST if is_bf16 else Precision.EXACT
    checkpoint = open_weights(model_dir, served=None)
    assert isinstance(checkpoint, Checkpoint), "an adapter was merged before"
    vocabulary = read_vocabulary(
        model_dir,
        num_rows=checkpoint.layout.vocab_size,
        stop_ids=config["stop_ids"],
        template=config["template"],
    )
    rules, agreeing = _rules(vocabulary, checkpoint, path)

    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_name(config["name"])
        kind = gguf.LlamaFileType.MOSTLY_BF16 if is_bf16 else gguf.LlamaFileType.ALL_F32
        writer.add_file_type(kind)
        vocabulary.add_to(writer, rules)

    write_model(checkpoint, path, precision, describe=describe)
    ids, notes = _chat(config, is_exact=not is_bf16)
    if agreeing < len(PROBES):
        notes.insert(0, _different(rules, agreeing))
    return {
        "with": "llama.cpp", "ids": ids, "num_tokens": len(ids), "precision": str(precision),
        "note": "; ".join(notes),
    }  # fmt: skip


def _different(rules: Rules, agreeing: int) -> str:
    name = rules[gguf.Keys.Tokenizer.PRE]
    return (
        f"llama.cpp has no rules that split texts as tokenizer.json does: with its nearest, {name},"
        f" {agreeing} of {len(PROBES)} texts have the same tokens"
    )


def _rules(vocabulary: Vocabulary, checkpoint: Checkpoint, path: Path) -> tuple[Rules, int]:
    """llama.cpp's rules for the tokenizer, tried in a file without weights."""
    probe = path.with_suffix(".vocabulary")
    with written(probe, gguf.GGUFType.MODEL, checkpoint.layout.architecture.name) as writer:
        vocabulary.add_to(writer, vocabulary.rules[0])
    try:
        tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))
        return choose(probe, vocabulary.rules, tokenizer)
    finally:
        probe.unlink()


def _chat(config: Mapping[str, Any], *, is_exact: bool) -> tuple[list[int], list[str]]:
    """Generate after forge's prompt, and let plain llama-cpp-python chat. Returns the tokens, and
    what differs."""
    prompt, stops, num = config["prompt_ids"], config["stop_ids"], config["num_tokens"]
    cache = KV_F32 if is_exact else None
    model = llama_cpp.Llama(
        config["path"], n_ctx=2 * len(prompt) + num + 64, n_threads=config["threads"],
        n_threads_batch=config["threads"], type_k=cache, type_v=cache, verbose=False, seed=0,
    )  # fmt: skip
    with closing(model):
        ids: list[int] = []
        for token in islice(model.generate(prompt, temp=0.0, repeat_penalty=1.0), num):
            ids.append(int(token))
            if token in stops:
                break
        return ids, _differences(config, model, ids)


def _differences(config: Mapping[str, Any], model: llama_cpp.Llama, ids: list[int]) -> list[str]:
    """The differences of plain llama-cpp-python from forge."""
    vocab = model._model.vocab
    endless = [t for t in config["stop_ids"] if not llama_cpp.llama_vocab_is_eog(vocab, t)]
    notes = [f"llama.cpp does not end an answer at token {token}" for token in endless]
    messages: Any = [{"role": "user", "content": config["question"]}]
    model.reset()
    try:
        text = model.create_chat_completion(
            messages, temperature=0.0, repeat_penalty=1.0, max_tokens=config["num_tokens"]
        )
    except Exception as error:  # whatever the template raises there
        return [*notes, f"llama-cpp-python cannot use the chat template: {error}"]
    assert isinstance(text, dict)
    asked = _asked(model, messages)
    if asked != config["prompt_ids"]:
        learned = len(config["prompt_ids"])
        return [*notes, f"llama.cpp reads a question as {len(asked)} tokens, not the {learned}"]
    if ids[-1] in config["stop_ids"] and text["choices"][0]["finish_reason"] != "stop":
        notes.append("llama-cpp-python ends the answer elsewhere")
    return notes


def _asked(model: llama_cpp.Llama, messages: Any) -> list[int]:
    bos, eos = (
        model._model.token_get_text(each) for each in (model.token_bos(), model.token_eos())
    )
    template = model.metadata["tokenizer.chat_template"]
    formatter = Jinja2ChatFormatter(template=template, eos_token=eos, bos_token=bos)
    text = formatter(messages=messages).prompt
    return model.tokenize(text.encode(), add_bos=False, special=True)


if __name__ == "__main__":
    main()
