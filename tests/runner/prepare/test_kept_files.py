"""Files of `data/`: one that was damaged since it was written is deleted, so it is made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.runner.prepare.prepare import data_dir, delete_damaged, write_kept
from forge.store.layout import RunPaths, create_run

if TYPE_CHECKING:
    from pathlib import Path

TEXT = '{"a": 1}\n{"a": "ä"}\n'


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run with pairs and the rows of one stage."""
    paths = create_run("x", store_dir=tmp_path)
    for name in ("pairs.jsonl", "rows-0.jsonl"):
        write_kept(data_dir(paths) / name, TEXT)
    return paths


@pytest.mark.parametrize("content", [b"", b'{"a": 1}\n', b"\xff garbage", TEXT.encode()[:-1]])
def test_only_the_damaged_file_is_deleted(paths: RunPaths, content: bytes) -> None:
    (data_dir(paths) / "rows-0.jsonl").write_bytes(content)
    assert delete_damaged(paths) == ["data/rows-0.jsonl"]
    assert not (data_dir(paths) / "rows-0.jsonl").exists()
    assert (data_dir(paths) / "pairs.jsonl").read_text(encoding="utf-8") == TEXT


def test_a_file_that_is_absent_or_has_no_digest_is_left_alone(paths: RunPaths) -> None:
    (data_dir(paths) / "rows-0.jsonl").unlink()
    (data_dir(paths) / "old.jsonl").write_text("of an earlier version")
    assert delete_damaged(paths) == []
    assert (data_dir(paths) / "old.jsonl").exists()


def test_a_damaged_digest_costs_only_the_work_to_make_the_file_again(paths: RunPaths) -> None:
    (data_dir(paths) / "pairs.jsonl.xxh3").write_bytes(b"\xff\xfe")
    assert delete_damaged(paths) == ["data/pairs.jsonl"]
