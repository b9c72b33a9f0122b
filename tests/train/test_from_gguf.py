"""A GGUF file becomes the model that llama.cpp computes, or is refused; it is made once."""

import json
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import ModelTable
from forge.data.chat import ChatTemplate
from forge.errors import ConfigError
from forge.records import Message
from forge.runner.prepare.hub import locate_model
from tests.train.gguf_files import write_whole

pytestmark = pytest.mark.long
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama, llama3": {"rope_parameters": LLAMA3},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma": {},
    "gemma2": {"sliding_window": 64, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 64, "query_pre_attn_scalar": 16},
    "phi3": {"sliding_window": None},
    "smollm3": {"num_hidden_layers": 5},
}


def make_random(path: Path, model_type: str, **values: Any) -> dict[str, Any]:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    sizes = {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 1024, "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**{**sizes, **values})
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    model.to(torch.bfloat16).save_pretrained(path)
    return model.state_dict()


@pytest.mark.parametrize("name", CASES)
def test_weights_and_config_are_those_that_the_file_was_made_of(name: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from forge.train.trainer.model.from_gguf import make_model

    before = make_random(tmp_path / "before", name.partition(",")[0], **CASES[name])
    make_model(write_whole(tmp_path / "x.gguf", tmp_path / "before"), tmp_path / "x", threads=1)
    after = load_file(tmp_path / "x" / "model.safetensors")
    for key, values in after.items():
        torch.testing.assert_close(values, before[key], rtol=0, atol=0.01)  # norms + 1, in bf16
    expected, found = (
        json.loads((tmp_path / each / "config.json").read_text()) for each in ("before", "x")
    )
    changed = {key for key in found if found[key] != expected.get(key)}
    assert changed <= {"original_max_position_embeddings"}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    make_random(tmp_path / "before", "llama")
    return write_whole(tmp_path / "x.gguf", tmp_path / "before")


def test_a_model_with_another_layout_than_that_of_llama_cpp_is_refused(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer.model import from_gguf

    monkeypatch.setattr(from_gguf, "LIKE", {"llama": "qwen2"})
    with pytest.raises(ConfigError, match=r"another model than llama\.cpp"):
        from_gguf.make_model(whole, whole.with_suffix(""), threads=1)
    assert not whole.with_suffix("").exists()


def test_a_vocabulary_that_is_split_otherwise_than_by_llama_cpp_is_refused(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge.train.trainer.model import from_gguf

    monkeypatch.setattr(from_gguf, "DIGITS", ())
    with pytest.raises(ConfigError, match=r'tokenizer\.ggml\.pre "smollm"'):
        from_gguf.make_model(whole, whole.with_suffix(""), threads=1)


def test_a_file_is_made_into_a_directory_once_and_may_go_then(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    said: list[str] = []
    first = locate_model(ModelTable(path=str(whole)), say=said.append)
    assert "→" in said[-1]
    chat = ChatTemplate.load(tmp_path.joinpath(str(first.path)))
    assert chat.decode(chat.render([Message(role="user", content="12")]), skip_special=False)
    assert chat.stop_token_ids[0] == 2
    again = locate_model(ModelTable(path=str(whole)), say=said.append)
    assert (again, len(said)) == (first, 2)
    whole.rename(tmp_path / "away.gguf")
    pinned = ModelTable(path=str(whole), revision=first.revision)
    assert locate_model(pinned).path == first.path
    whole.write_bytes((tmp_path / "away.gguf").read_bytes() + b"x")
    with pytest.raises(ConfigError, match=str(first.revision)):
        locate_model(pinned)
    whole.unlink()
    with pytest.raises(ConfigError, match="not there"):
        locate_model(ModelTable(path=str(whole), revision="0" * 64))
