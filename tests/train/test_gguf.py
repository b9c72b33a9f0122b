"""A GGUF file: what its header says, and what is refused, in one line with the reason."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import EvalStage, Experiment, ModelTable
from forge.errors import ConfigError
from forge.runner.plan.requirements import require_template
from forge.runner.plan.shape import count_params, model_shape
from forge.runner.prepare.hub import locate_model
from forge.train.gguf import read_gguf
from tests.train.gguf_files import CHATML, VOCAB, write_header


def test_a_header_gives_the_config_and_the_template(tmp_path: Path) -> None:
    scaling = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    model = read_gguf(write_header(tmp_path / "x.gguf", **scaling))
    config = model.config()
    assert (config["model_type"], config["vocab_size"], config["eos_token_id"]) == ("llama", 512, 2)
    assert (config["head_dim"], config["rms_norm_eps"]) == (16, 1e-6)
    assert config["rope_parameters"] == {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    assert (model.num_params, model.quantization) == (VOCAB * 64, "F32")
    assert model.chat_template == CHATML
    assert model.special_tokens == {"eos_token": "<|im_end|>"}


def test_a_plan_knows_the_model_of_a_file_and_asks_for_a_template(tmp_path: Path) -> None:
    path = write_header(tmp_path / "x.gguf", template=None)
    model = ModelTable(path=str(path))
    shape = model_shape(model)
    assert (shape.layers, shape.hidden) == (1, 64)
    assert count_params(model) == VOCAB * 64
    experiment = Experiment(name="x", model=model, stage=[EvalStage(kind="eval")])
    with pytest.raises(ConfigError, match="chatml"):
        require_template(experiment, None)
    asked = model.model_copy(update={"chat_template": "chatml"})
    assert require_template(experiment.model_copy(update={"model": asked}), None) == ()


def test_a_directory_of_a_gguf_file_alone_is_answered_with_the_file(tmp_path: Path) -> None:
    path = write_header(tmp_path / "x.gguf")
    with pytest.raises(ConfigError) as refused:
        locate_model(ModelTable(path=str(tmp_path)))
    assert str(path) in str(refused.value)


HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architecture": "mamba"}, "'mamba'; one of llama, qwen2"),
    "vision": ({"architecture": "clip"}, "a vision encoder"),
    "adapter": ({"general__type": "adapter"}, "an adapter"),
    "part": ({"split__count": 3, "split__no": 1}, "part 2 of 3"),
    "experts": ({"llama__expert_count": 8}, "experts"),
    "vocabulary": ({"tokenizer__ggml__tokens": None}, "without a vocabulary"),
    "sizes": ({"llama__attention__head_count": None}, "llama.attention.head_count lacks"),
    "layers": ({"llama__feed_forward_length": [96, 48]}, "feed_forward_length lists"),
    "token": ({"tokenizer__ggml__bos_token_id": 512}, "bos_token_id = 512"),
    "positions": (
        {"llama__rope__scaling__type": "dynamic", "llama__rope__scaling__factor": 4.0},
        '"dynamic"',
    ),
    "blocks": ({"llama__block_count": 1 << 31}, "2147483648 blocks"),
    "kind of value": ({"split__count": [1, 2]}, "damaged"),
    "text": ({"llama__rope__freq_base": "x"}, "damaged"),
    "line": ({"architecture": "a\nb"}, r"'a\nb'"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_file_of_another_kind_is_refused_by_name(name: str, tmp_path: Path) -> None:
    values, words = HEADERS[name]
    path = write_header(tmp_path / "x.gguf", **values)
    with pytest.raises(ConfigError) as refused:
        read_gguf(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def _with_type(data: bytes, number: int) -> bytes:
    at = data.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 2 * 8
    return data[:at] + struct.pack("<I", number) + data[at + 4 :]


BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda data: b"", "cut short"),
    "counts": (lambda data: data[:20], "cut short"),
    "values": (lambda data: data[:4000], "cut short"),
    "tensors": (lambda data: data[:-1], "cut short"),
    "endless": (lambda data: data[:8] + b"\xff" * 16 + data[24:], "cut short or damaged"),
    "twice": (lambda data: data.replace(b"<unused10>", b"<unused11>"), "twice"),
    "other": (lambda data: b"PK" + data, "not a GGUF"),
    "version": (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "version 1"),
    "endian": (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "big-endian"),
    "unknown": (lambda data: _with_type(data, 99), "quantization 99"),
    "Q8_K": (lambda data: _with_type(data, 15), "token_embd.weight: found Q8_K"),
}


@pytest.mark.parametrize("name", BYTES)
def test_a_broken_file_is_refused(name: str, tmp_path: Path) -> None:
    change, words = BYTES[name]
    path = write_header(tmp_path / "x.gguf")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"x\.gguf") as refused:
        read_gguf(path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(ConfigError, match=r"x\.gguf: not a regular file"):
        read_gguf(tmp_path / "x.gguf")
