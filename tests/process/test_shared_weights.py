"""Weights that one process shares with others by handles."""

import os
from pathlib import Path

import pytest
import torch

from forge.process.shared_weights import is_shared, open_shared, share, shared_shapes
from tests.shared_memory import UUID, FakeIpc


def test_tensors_come_back_by_name_while_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeIpc(monkeypatch)
    kept = {"a.weight": torch.randn(3, 5), "b": torch.randn(7, dtype=torch.bfloat16)}
    path = tmp_path / "grpo-1"
    share(path, {**kept, "tied": kept["a.weight"]})
    assert is_shared(path)
    assert os.listdir(path) == ["shared.json"]
    assert shared_shapes(path) == {"a.weight": (3, 5), "b": (7,)}, "no second name"
    found = {name: tensor.clone() for name, tensor in open_shared(path)}
    assert list(found) == list(kept)
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    kept.clear()
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        next(open_shared(path))


def test_a_process_that_does_not_see_the_gpu_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeIpc(monkeypatch)
    tensor = torch.ones(2)
    share(tmp_path / "grpo-1", {"a": tensor})
    monkeypatch.setattr("forge.process.shared_weights._uuid", lambda device: "ffff")
    with pytest.raises(RuntimeError, match=f"on GPU {UUID}; this process sees ffff"):
        next(open_shared(tmp_path / "grpo-1"))
