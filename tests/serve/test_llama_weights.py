"""Directories of weights: reading them, and refusing them with one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from forge.errors import ConfigError
from forge.serve.checkpoint_files import list_tensors
from forge.serve.llama.checkpoint import Adapter, Checkpoint, Precision, open_weights
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import ModelSettings
from tests.serve import damage
from tests.serve.conftest import Reference

EXACT = Precision.EXACT


def test_every_element_type_is_read_like_torch_reads_it(tmp_path: Path) -> None:
    values = torch.randn(7, 5)
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    save_file({name: values.to(kind) for name, kind in kinds.items()}, tmp_path / "x.safetensors")
    stored = list_tensors(tmp_path / "x.safetensors")
    for name, kind in kinds.items():
        assert (stored[name].read_f32() == values.to(kind).float().numpy()).all()
        expected = values.to(kind).to(torch.bfloat16).view(torch.uint16).numpy()
        assert (stored[name].read_bf16() == expected).all()


def test_a_sharded_checkpoint_is_read_as_one(tied: Reference, tmp_path: Path) -> None:
    tied.model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    one, many = open_weights(tied.path, served=None), open_weights(tmp_path, served=None)
    assert isinstance(one, Checkpoint)
    assert isinstance(many, Checkpoint)
    for name, tensor in one.tensors.items():
        assert (tensor.read(EXACT) == many.tensors[name].read(EXACT)).all()


def cut_header(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"\xff\x00")


def lie_in_header(path: Path) -> None:
    file = path / "model.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["model.norm.weight"]["data_offsets"] = [-256, 0]
    new = json.dumps(header).encode()
    file.write_bytes(len(new).to_bytes(8, "little") + new + data[8 + size :])


DAMAGES: dict[str, damage.Damage] = {
    "truncated": damage.truncate(),
    "truncated or not": cut_header,
    "bytes -256..0": lie_in_header,
    "no such directory": shutil.rmtree,
    "No such file": lambda path: (path / "model.safetensors").unlink(),
    "not JSON": lambda path: (path / "config.json").write_text("{"),
    "tensors missing": damage.LACKING,
    "have no place": damage.WITH_ANOTHER,
    "must be": damage.OF_ANOTHER_SHAPE,
    "NaN or infinity": damage.change_tensors(lambda t: t["model.norm.weight"].fill_(float("nan"))),
    "another model": damage.change_config(rms_norm_eps=1e-3),
    "model_type": damage.change_config(model_type="bert"),
    "architecture llama": damage.change_config(model_type="llama"),
    "rope_type": damage.change_config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4}),
    "not a usable": damage.change_config(hidden_size=None),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_damaged_weights_are_refused_and_the_old_ones_stay(
    said: str, tied: Reference, newer: Reference, tmp_path: Path
) -> None:
    engine = LlamaEngine(
        ModelSettings(model_dir=tied.path, work_dir=tmp_path, context_tokens=256), num_slots=2
    )
    prompt, completion = np.arange(9), np.arange(20, 40)
    before = engine.score(prompt, completion)
    damaged = tmp_path / "damaged"
    shutil.copytree(newer.path, damaged)
    DAMAGES[said](damaged)
    with pytest.raises(ConfigError, match=said) as raised:
        engine.load_weights(damaged, version=1)
    assert "\n" not in str(raised.value)
    assert engine.version == 0
    assert (engine.score(prompt, completion) == before).all()
    engine.close()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"lora_alpha": None}, "lora_alpha"),
    ],
)
def test_an_adapter_that_cannot_be_served_is_refused(
    fields: dict[str, object],
    said: str,
    tied: Reference,
    make_adapter: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    checkpoint = open_weights(tied.path, served=None)
    assert isinstance(checkpoint, Checkpoint)
    path = tmp_path / "adapter"
    shutil.copytree(make_adapter(tied, r=2).path, path)
    assert isinstance(open_weights(path, served=checkpoint.layout), Adapter)
    damage.change_config(damage.ADAPTER_CONFIG, **fields)(path)
    with pytest.raises(ConfigError, match=said):
        open_weights(path, served=checkpoint.layout)
