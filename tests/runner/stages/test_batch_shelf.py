"""Batches are durable, and kept until a checkpoint covers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forge.runner.stages import batch_shelf
from forge.runner.stages.batch_shelf import BatchShelf
from forge.train.batch import SampleHeader, read_batch
from tests.runner.stages.desks import batch, sample

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_batch_file_holds_the_samples_of_its_batch(tmp_path: Path) -> None:
    shelf = BatchShelf(tmp_path, stage=3)
    await shelf.add(batch(1))
    path = shelf.path(1)
    assert path is not None
    assert read_batch(path) == [sample(1)]
    assert shelf.path(2) is None


async def test_a_later_attempt_has_the_same_headers_and_reads_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = BatchShelf(tmp_path, stage=3), BatchShelf(tmp_path, stage=3)
    for step in (1, 2):
        await first.add(batch(step))
    read: list[str] = []

    def read_headers(path: Path) -> list[SampleHeader]:
        read.append(path.name)
        return original(path)

    original = batch_shelf.read_headers
    monkeypatch.setattr(batch_shelf, "read_headers", read_headers)
    assert second.recover() == 2
    assert sorted(read) == ["3-000001.npz", "3-000002.npz"]
    assert [second.headers(step) for step in (1, 2)] == [first.headers(step) for step in (1, 2)]
    assert second.groups() == {1}
    assert len(read) == 2


async def test_files_of_other_stages_and_unfinished_files_are_not_recovered(
    tmp_path: Path,
) -> None:
    await BatchShelf(tmp_path, stage=13).add(batch(5))
    (tmp_path / ".3-000004.npz.partial").write_bytes(b"cut off")
    assert BatchShelf(tmp_path, stage=3).recover() == 0


async def test_a_checkpoint_discards_the_steps_that_it_covers_and_no_others(
    tmp_path: Path,
) -> None:
    shelf = BatchShelf(tmp_path, stage=3)
    for step in (1, 2, 3):
        await shelf.add(batch(step))
    shelf.discard(up_to=2)
    assert [path.name for path in tmp_path.iterdir()] == ["3-000003.npz"]
    assert (shelf.path(2), shelf.path(3)) == (None, tmp_path / "3-000003.npz")
