"""Batches are durable, checked when they are taken over, and kept while a checkpoint needs them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forge.errors import MachineError
from forge.runner.stages import checkpoints
from forge.runner.stages.checkpoints import BatchShelf
from forge.train.batch import SampleHeader
from tests.runner.stages.desks import batch


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

    original = checkpoints.read_headers
    monkeypatch.setattr(checkpoints, "read_headers", read_headers)
    assert second.recover() == ""
    assert second.last_step == 2
    assert sorted(read) == ["3-000001.npz", "3-000002.npz"]
    assert [second.headers(step) for step in (1, 2)] == [first.headers(step) for step in (1, 2)]
    assert second.groups() == {1}
    assert len(read) == 2


async def test_files_of_other_stages_and_unfinished_files_are_not_recovered(tmp_path: Path) -> None:
    await BatchShelf(tmp_path, stage=13).add(batch(5))
    (tmp_path / ".3-000004.npz.partial").write_bytes(b"cut off")
    shelf = BatchShelf(tmp_path, stage=3)
    assert (shelf.recover(), shelf.last_step) == ("", 0)


async def test_batches_before_a_checkpoint_are_discarded_but_not_those_with_a_needed_state(
    tmp_path: Path,
) -> None:
    shelf = BatchShelf(tmp_path, stage=3)
    for step in (1, 2, 3, 4, 5):
        await shelf.add(batch(step))
    shelf.discard(up_to=4, keep=[2, 4])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "3-000002.npz", "3-000004.npz", "3-000005.npz",
    ]  # fmt: skip
    assert shelf.path(6) is None, "still to be made"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.index(b"completion_ids.npy") + 200  # in the array that follows its name
    data[place] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "damaged"),
        (flip, "damaged"),
        (empty, "damaged"),
        (lambda path: path.unlink(), "missing"),
    ],
    ids=["truncated", "flipped", "empty", "missing"],
)
async def test_a_damaged_batch_ends_the_row_and_is_named(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    first = BatchShelf(tmp_path, stage=3)
    for step in (1, 2, 3, 4):
        await first.add(batch(step, state={"of": step}))
    damage(tmp_path / "3-000003.npz")
    shelf = BatchShelf(tmp_path, stage=3)
    found = shelf.recover(after=1)
    assert found.startswith(f"{tmp_path.name}/3-000003.npz: {words}")
    assert (shelf.last_step, shelf.last_state) == (2, {"of": 2})
    assert shelf.path(2) is not None
    assert shelf.path(3) is None, "it is made again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3-000001.npz", "3-000002.npz"]


async def test_a_trained_batch_without_a_file_is_missed(tmp_path: Path) -> None:
    first = BatchShelf(tmp_path, stage=3)
    await first.add(batch(1, state={"of": 1}))
    shelf = BatchShelf(tmp_path, stage=3)
    assert shelf.recover(after=1, trained=3) == f"{tmp_path.name}/3-000002.npz: missing"
    assert (shelf.last_step, shelf.last_state) == (1, {"of": 1})


async def test_a_trainer_that_continues_earlier_finds_batches_before_its_checkpoint(
    tmp_path: Path,
) -> None:
    first = BatchShelf(tmp_path, stage=3)
    for step in (1, 2, 3):
        await first.add(batch(step))
    shelf = BatchShelf(tmp_path, stage=3)
    shelf.recover(after=2)
    shelf.check(after=0)
    assert shelf.headers(1) == first.headers(1)
    truncate(tmp_path / "3-000002.npz")
    with pytest.raises(MachineError, match=r"3-000002.npz: damaged .*; \"forge resume\" plays"):
        shelf.check(after=0)
