"""`python -m forge.serve.llama.export CONFIG.json`: writes a model as a GGUF file with vocabulary
and chat template, then loads it in plain llama-cpp-python and chats with it.

Config: `model_dir`, `path` of the file, `name` of the model, `template`, `question`, its
`prompt_ids`, `stop_ids`, `num_tokens`, `threads`, `result_path`. The result file holds the
generated ids, and in `note` what llama.cpp does otherwise than the tokenizer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from tokenizers import Tokenizer

from forge.process.lease import hold_lease
from forge.serve.checkpoint_files import read_json
from forge.serve.llama.checkpoint import Checkpoint, Precision, open_weights, write_model, written
from forge.serve.llama.vocabulary import PROBES, Rules, Vocabulary, choose, read_vocabulary

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
