"""A zygote is replaced while children of the old one are still held: no other child pays for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge import processes
from forge.evalpool.judge.spawner import Spawner, UnusableInstallation, ZygoteGone
from tests.evalpool.benches import ROOT, RUNNER_UID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    opened = Spawner(isolation="auto", folder=tmp_path / "root", memory_bytes=1 << 30)
    opened.start()
    opened.wait_ready()
    yield opened
    opened.close()


def test_a_child_of_an_ended_zygote_is_not_taken_for_another_ones(spawner: Spawner) -> None:
    old, lost = (spawner.spawn(role="runner", uid=RUNNER_UID) for _ in range(2))
    spawner.start()
    with pytest.raises(ZygoteGone):  # it does not fork yet, and what it says is not for us
        spawner.spawn(role="runner", uid=RUNNER_UID)
    spawner.wait_ready()
    new = spawner.spawn(role="runner", uid=RUNNER_UID)
    numbered_alike = dataclasses.replace(old, pid=new.pid)
    assert (spawner.is_current(old), spawner.is_current(new)) == (False, True)
    assert spawner.end(numbered_alike) == 0
    assert not processes.has_ended(new.pid_here)
    with pytest.raises(ZygoteGone, match="with its zygote"):
        spawner.ended(lost)
    spawner.end(new)


def test_a_zygote_outlives_a_question_for_a_child_that_it_does_not_have(spawner: Spawner) -> None:
    child = spawner.spawn(role="runner", uid=RUNNER_UID)
    spawner.end(child)
    with pytest.raises(ZygoteGone, match="knows no child"):
        spawner.end(child)
    spawner.end(spawner.spawn(role="runner", uid=RUNNER_UID))


def test_an_installation_that_cannot_be_used_is_not_taken_for_a_missing_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('made for\\nanother torch')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    opened = Spawner(isolation="auto", folder=tmp_path / "root", memory_bytes=1 << 30)
    opened.start()
    with pytest.raises(
        UnusableInstallation, match=r"torch 2\.\S+, triton \S+: ImportError: made for$"
    ):
        opened.wait_ready()
    opened.close()
