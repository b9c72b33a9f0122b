"""A zygote is replaced while children of the old one are still held: no other child pays for it."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import socket
import time
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge import app
from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.children.spawner import (
    LimitMet,
    SandboxRefused,
    Spawner,
    UnusableInstallation,
    ZygoteGone,
    _failure,
)
from forge.evalpool.judge.children.zygote import reporting_refusals
from forge.evalpool.judge.sandbox import enter, processes
from forge.evalpool.judge.sandbox.enter import LimitTooLow
from tests.evalpool.benches import ROOT, RUNNER_UID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


CORES = tuple(sorted(os.sched_getaffinity(0))[-2:])


@pytest.fixture(scope="module")
def spawner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawner]:
    """Tests leave it with a zygote that is ready."""
    folder = tmp_path_factory.mktemp("spawner") / "root"
    opened = Spawner(isolation="auto", folder=folder, memory_bytes=1 << 30, cores=CORES)
    opened.start()
    opened.wait_ready()
    yield opened
    opened.close()


def test_a_child_is_held_to_its_core_and_an_oracle_to_its_judges_cores(spawner: Spawner) -> None:
    for role, cores in (("evaluator", {CORES[0]}), ("oracle", set(CORES))):
        child = spawner.spawn(role=role, uid=RUNNER_UID)
        assert os.sched_getaffinity(child.pid_here) == cores
        spawner.end(child)


def test_a_child_of_an_ended_zygote_is_not_taken_for_another_ones(spawner: Spawner) -> None:
    old, lost = (spawner.spawn(role="evaluator", uid=RUNNER_UID) for _ in range(2))
    spawner.start()
    with pytest.raises(ZygoteGone):  # it does not fork yet, and what it says is not for us
        spawner.spawn(role="evaluator", uid=RUNNER_UID)
    spawner.wait_ready()
    new = spawner.spawn(role="evaluator", uid=RUNNER_UID)
    numbered_alike = dataclasses.replace(old, pid=new.pid)
    assert (spawner.is_current(old), spawner.is_current(new)) == (False, True)
    assert spawner.end(numbered_alike) == 0
    assert not processes.has_ended(new.pid_here)
    with pytest.raises(ZygoteGone, match="with its zygote"):
        spawner.ended(lost)
    spawner.end(new)


def test_a_zygote_outlives_a_question_for_a_child_that_it_does_not_have(spawner: Spawner) -> None:
    child = spawner.spawn(role="evaluator", uid=RUNNER_UID)
    spawner.end(child)
    with pytest.raises(ZygoteGone, match="knows no child"):
        spawner.end(child)
    spawner.end(spawner.spawn(role="evaluator", uid=RUNNER_UID))


def test_a_zygote_that_is_killed_as_it_starts_is_said_to_be_killed(tmp_path: Path) -> None:
    opened = Spawner(isolation="auto", folder=tmp_path / "root", memory_bytes=1 << 30)
    opened.start()
    launcher = opened._process
    assert launcher is not None
    launcher.kill()
    with pytest.raises(ZygoteGone, match=r"^the zygote ended: killed by signal 9 .* while it star"):
        opened.wait_ready()
    opened.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), SandboxRefused),
        (OSError(errno.EMFILE, "Too many open files"), LimitMet),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), LimitMet),
        (LimitTooLow('"ulimit -n" is 40 here; a candidate gets 256'), LimitMet),
        (MemoryError(), LimitMet),
    ],
)
def test_a_failed_step_is_told_as_a_refusal_or_as_a_limit(
    error: Exception, kind: type[ZygoteGone]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(type(error)), reporting_refusals(theirs):
            raise error
        frame = frames.receive(ours, deadline=time.monotonic() + 5, expected=(frames.Kind.FAILED,))
    assert type(_failure(frame)) is kind


def test_a_limit_that_cannot_be_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: int, limits: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(enter.resource, "setrlimit", refuse)
    monkeypatch.setattr(enter.resource, "getrlimit", lambda kind: (40, 40))
    with pytest.raises(LimitTooLow, match='"ulimit -n" is 40 here; a candidate gets 256'):
        enter._set_limit(resource.RLIMIT_NOFILE, 256)


@pytest.mark.parametrize(
    ("error", "code", "words", "absent"),
    [
        (SandboxRefused("unshare: no"), 3, 'isolation = "none"', "out of memory"),
        (LimitMet('"ulimit -n" is 40 here'), 3, "no candidate can be started", "CAP_SYS_ADMIN"),
        (ZygoteGone("the zygote ended: killed by signal 9"), 4, "killed by signal 9", "SYS_ADMIN"),
    ],
)
def test_a_judge_without_a_zygote_says_what_is_to_blame(
    error: ZygoteGone, code: int, words: str, absent: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    codes: list[int] = []
    monkeypatch.setattr(app.os, "_exit", codes.append)
    app._refuse(error)
    assert codes == [code]
    assert words in caplog.text
    assert absent not in caplog.text


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
