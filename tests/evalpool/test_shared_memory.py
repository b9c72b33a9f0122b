"""Memory that a child fills: nobody can change the content that the judge has taken."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.channel import shm
from forge.evalpool.judge.channel.shm import returned_memory, shared_memory, taken

if TYPE_CHECKING:
    from forge.evalpool.judge.channel.shm import Data

SIZE = 1 << 16


@pytest.fixture(params=[SIZE, SIZE + 1], ids=["sealed", "copied"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "LARGE_BYTES", request.param)


def filled(*, is_left_mapped: bool = False) -> tuple[Data, int, mmap.mmap | None]:
    """The content of memory that a child filled, as the judge takes it, the child's descriptor and
    its mapping."""
    with returned_memory(2 * SIZE) as fd:
        theirs = os.dup(fd)
        mapped = mmap.mmap(theirs, SIZE)
        mapped[:] = b"\1" * SIZE
        if not is_left_mapped:
            mapped.close()
        return taken(fd, SIZE), theirs, mapped if is_left_mapped else None


@pytest.mark.usefixtures("threshold")
def test_what_is_taken_stays_whatever_the_child_writes_later() -> None:
    found, theirs, mapped = filled(is_left_mapped=True)
    assert mapped is not None
    mapped[:] = b"\2" * SIZE
    os.pwrite(theirs, b"\3" * SIZE, 0)
    mapped.close()
    os.close(theirs)
    assert bytes(found) == b"\1" * SIZE


def test_sealed_memory_cannot_be_written_or_mapped_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shm, "LARGE_BYTES", SIZE)
    found, theirs, _ = filled()
    with pytest.raises(PermissionError):
        os.pwrite(theirs, b"\3", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(theirs, SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(theirs, 0)
    os.close(theirs)
    assert bytes(found) == b"\1" * SIZE
    assert memoryview(found).readonly


def test_a_candidate_cannot_seal_its_memory() -> None:
    with shared_memory(SIZE) as (fd, _), pytest.raises(PermissionError):
        shm.fcntl.fcntl(fd, shm.F_ADD_SEALS, shm.SEAL_WRITES)
