"""Exported GGUF files in plain llama-cpp-python: vocabulary, template, end of an answer."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import forge.data.chat
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError
from forge.records import Message
from forge.serve.llama.export import PRE, PROBES, SPACE, export
from tests.serve.conftest import Reference

LONG = pytest.mark.long
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QUESTION = "It's 2026: add 12345 vectors\n\n  with  Triton!"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "qwen2": rf"{CONTRACTIONS}|\p{{N}}|{REST}",
    "llama-bpe": rf"{CONTRACTIONS}|\p{{N}}{{1,3}}|{REST}",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def trained(tokenizer: Tokenizer, special: list[str], **keys: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, show_progress=False, **keys
    )
    tokenizer.train_from_iterator([*PROBES, QUESTION] * 3, trainer)
    return tokenizer


def byte_level(split: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(split), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, SPECIAL, initial_alphabet=alphabet)


def pieces(*, has_prefix: bool) -> Tokenizer:
    """Llama 2's kind: "▁" for a space, and a byte for what has no token."""
    all_bytes = [f"<0x{i:02X}>" for i in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    prefix: list[Any] = [normalizers.Prepend("▁")] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, *steps])
    tokenizer = trained(tokenizer, [*SPECIAL, "<unk>", *all_bytes], limit_alphabet=80)
    found = json.loads(tokenizer.to_str())
    found["added_tokens"] = [t for t in found["added_tokens"] if t["content"] not in all_bytes]
    return Tokenizer.from_str(json.dumps(found))


@pytest.fixture
def speaking(make_random: Callable[..., Reference]) -> Callable[..., Path]:

    def make(tokenizer: Tokenizer, *, model_type: str = "llama", **values: Any) -> Path:
        path = make_random(model_type, seed=0, vocab_size=720, **values).path
        tokenizer.save(str(path / "tokenizer.json"))
        names = {"eos_token": SPECIAL[2], "bos_token": SPECIAL[0]}
        (path / "tokenizer_config.json").write_text(json.dumps(names))
        template = Path(forge.data.chat.__file__).with_name("chat_template.jinja")
        shutil.copy(template, path / "chat_template.jinja")
        return path

    return make


def exported(model_dir: Path) -> dict[str, Any]:
    chat = ChatTemplate.load(model_dir)
    prompt = chat.prompt([Message(role="user", content=QUESTION)])
    return export(
        {
            "model_dir": model_dir, "path": str(model_dir / "x.gguf"), "name": "toy",
            "template": chat.template.source, "question": QUESTION, "threads": 1,
            "prompt_ids": list(prompt.ids), "stop_ids": chat.stop_token_ids, "num_tokens": 6,
        }
    )  # fmt: skip


def decoded(chat: ChatTemplate, ids: list[int]) -> str:
    """Without bytes that are no character, which llama-cpp-python leaves out and does not count."""
    return chat.decode(ids).replace("\ufffd", "")


@contextmanager
def plain(path: Path) -> Iterator[llama_cpp.Llama]:
    model = llama_cpp.Llama(str(path), n_ctx=512, verbose=False, type_k=0, type_v=0)
    try:
        yield model
    finally:
        model.close()


def ask(model: llama_cpp.Llama, question: str) -> Any:
    return model.create_chat_completion(
        [{"role": "user", "content": question}], max_tokens=6, temperature=0
    )


@pytest.mark.parametrize(
    "name", ["qwen2", *(pytest.param(name, marks=LONG) for name in ("llama-bpe", "gpt-2"))]
)
def test_the_rules_that_split_as_the_tokenizer_does_are_found(
    name: str, speaking: Callable[..., Path]
) -> None:
    path = speaking(byte_level(SPLITS[name]))
    found = exported(path)
    assert found["note"] == ""
    with plain(path / "x.gguf") as model:
        assert model.metadata[PRE] == name
        assert model.metadata["general.name"] == "toy"
        said = ask(model, QUESTION)
    chat = ChatTemplate.load(path)
    asked = chat.render([Message(role="user", content=QUESTION)])
    assert said["usage"]["prompt_tokens"] == len(asked)
    assert said["choices"][0]["message"]["content"].startswith(decoded(chat, found["ids"]))


@pytest.mark.parametrize("has_prefix", [True, pytest.param(False, marks=LONG)])
def test_a_vocabulary_with_a_token_for_each_byte_is_exported(
    has_prefix: bool, speaking: Callable[..., Path]
) -> None:
    path = speaking(pieces(has_prefix=has_prefix), model_type="gemma", head_dim=16)
    assert exported(path)["note"] == ""
    with plain(path / "x.gguf") as model:
        assert model.metadata[SPACE] == str(has_prefix).lower()


def test_an_answer_ends_at_the_end_of_the_turn(speaking: Callable[..., Path]) -> None:
    """The model says nothing else."""
    path = speaking(byte_level(SPLITS["qwen2"]), model_type="phi", tie_word_embeddings=False)
    tensors = load_file(path / "model.safetensors")
    end = ChatTemplate.load(path).stop_token_ids[0]
    tensors["lm_head.bias"] = torch.eye(720)[end] * 1e4
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    found = exported(path)
    assert (found["ids"], found["note"]) == ([end], "")
    with plain(path / "x.gguf") as model:
        said = ask(model, "a")
    assert said["choices"][0]["finish_reason"] == "stop"


@pytest.mark.long
def test_a_tokenizer_that_llama_cpp_splits_otherwise_is_named(
    speaking: Callable[..., Path],
) -> None:
    """Single letters: no rules of llama.cpp do so."""
    path = speaking(byte_level(r"\p{L}|[^\p{L}]{1,2}"))
    tokenizer = byte_level(r"[^\n]+|\n")  # merges across all words
    found = json.loads(tokenizer.to_str())
    found["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\p{L}|[^\p{L}]{1,2}"}
    Tokenizer.from_str(json.dumps(found)).save(str(path / "tokenizer.json"))
    note = exported(path)["note"]
    assert f"of {len(PROBES)} texts" in note


def test_a_tokenizer_of_another_kind_is_refused(speaking: Callable[..., Path]) -> None:
    tokenizer = Tokenizer(models.WordPiece({"a": 0, SPECIAL[2]: 1}, unk_token="a"))
    tokenizer.add_special_tokens(SPECIAL)
    path = speaking(tokenizer)
    with pytest.raises(ConfigError, match="tokenizer of type WordPiece"):
        exported(path)
