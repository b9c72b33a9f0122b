"""Directories of weights in chunks: packed once, unpacked whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from forge.cluster import weights
from forge.cluster.weights import pack, touch, unpack, weights_key
from forge.errors import MachineError
from tests.cluster.fake_ray import FakeRef


def checkpoint(folder: Path) -> Path:
    (folder / "part").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(1000))
    (folder / "part" / "tokens.json").write_bytes(b"{}")
    (folder / "empty").write_bytes(b"")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("chunk_bytes", [1, 333, 1000, 4096])
def test_a_directory_arrives_whole(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", chunk_bytes)
    source = checkpoint(tmp_path / "source")
    anyio.run(unpack, pack(source, FakeRef), tmp_path / "copy")
    assert files_of(tmp_path / "copy") == files_of(source)


def test_another_content_has_another_key(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source")
    before = weights_key(source)
    assert weights_key(source) == before
    (source / "empty").write_bytes(b"x")
    assert weights_key(source) != before


def test_one_file_arrives_under_its_name(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}")
    anyio.run(unpack, pack(rows, FakeRef), tmp_path / "copy")
    assert files_of(tmp_path / "copy") == {"rows.jsonl": b"{}"}


def test_a_missing_directory_is_one_line(tmp_path: Path) -> None:
    for read in (weights_key, lambda path: pack(path, FakeRef)):
        with pytest.raises(MachineError, match=r"none: it cannot be read for a node: .*No such"):
            read(tmp_path / "none")


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_a_file_stays_below_its_directory(name: str, tmp_path: Path) -> None:
    manifest: Any = [(name, [FakeRef(np.zeros(1, np.uint8))])]
    with pytest.raises(MachineError, match="a name below the directory"):
        anyio.run(unpack, manifest, tmp_path / "copy")


def test_the_least_recently_used_is_dropped() -> None:
    kept = {"a": 1, "b": 2, "c": 3}
    assert touch(kept, "a", num=2) == [2]
    assert list(kept) == ["c", "a"]


def test_two_chunks_fit_into_the_smallest_object_store_of_ray() -> None:
    smallest = 75 << 20  # OBJECT_STORE_MINIMUM_MEMORY_BYTES in ray/_private/ray_constants.py
    assert smallest >= 2 * weights.CHUNK_BYTES
