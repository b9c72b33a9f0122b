"""Damages of a directory of weights, which every engine must refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

MODEL, ADAPTER = "model.safetensors", "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
Damage = Callable[[Path], object]


def truncate(file: str = MODEL) -> Damage:
    return lambda path: (path / file).write_bytes((path / file).read_bytes()[:-1000])


def change_tensors(
    change: Callable[[dict[str, torch.Tensor]], object], *, file: str = MODEL
) -> Damage:
    def damage(path: Path) -> None:
        tensors = load_file(path / file)
        change(tensors)
        save_file(tensors, path / file, metadata={"format": "pt"})

    return damage


def change_config(file: str = "config.json", **fields: object) -> Damage:
    def damage(path: Path) -> None:
        config = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps({**config, **fields}))

    return damage


LACKING = change_tensors(lambda t: t.pop("model.norm.weight"))
WITH_ANOTHER = change_tensors(lambda t: t.update(surplus=torch.zeros(1)))
OF_ANOTHER_SHAPE = change_tensors(lambda t: t.update({"model.norm.weight": torch.zeros(3)}))
