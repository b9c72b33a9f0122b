"""Executors as real processes, forked by a nursery whose children have no card."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.execute import executors
from forge.evalpool.judge.execute.call import Call
from forge.evalpool.judge.execute.executor import ExecutorGone, ProgramFault
from forge.evalpool.judge.execute.executors import Nursery
from forge.evalpool.judge.program.format import Op, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Program(
    target="cuda:90:32",
    storages=(),
    tensors=(),
    kernels=(),
    init=(),
    forward=(Op(name="aten.first", arguments=()), Op(name="aten.second", arguments=())),
    outputs=(),
)


@pytest.fixture
def nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setattr(executors, "MODULE", "tests.evalpool.execute.stand_in_nursery")
    made = Nursery()
    yield made
    made.close()


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def state_of(pid: int) -> tuple[str, int]:
    """(state, parent) of a process; `gone` where there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except OSError:
        return "gone", 0
    return state, int(parent)


def is_alive(pid: int) -> bool:
    return state_of(pid)[0] not in ("Z", "gone")


def test_executors_are_forked_and_end_with_the_nursery(nursery: Nursery) -> None:
    one, other = nursery.start(), nursery.start()
    pids = [one.facts["pid"], other.facts["pid"]]
    assert len(set(pids)) == 2
    one.unload(deadline=soon())
    nursery.close()
    while any(is_alive(pid) for pid in pids):  # the death signal comes a moment later
        time.sleep(0.005)
    one.end()
    other.end()


def test_a_process_that_does_not_answer_is_killed_and_its_step_is_known(nursery: Nursery) -> None:
    executor = nursery.start()
    executor.load(PROGRAM, b"", [], deadline=soon())
    with pytest.raises(ProgramFault, match=r"in aten\.second") as caught:
        executor.run([Call()], deadline=soon(0.2))
    assert caught.value.reason == "timeout"
    assert not is_alive(executor.facts["pid"])


def test_a_process_that_dies_is_gone_and_the_next_one_starts(nursery: Nursery) -> None:
    executor = nursery.start()
    with pytest.raises(ExecutorGone):
        executor.tune(Call(), deadline=soon())
    other = nursery.start()
    other.unload(deadline=soon())
    other.end()


def test_a_nursery_that_was_killed_is_made_anew(nursery: Nursery) -> None:
    executor = nursery.start()
    _, parent = state_of(executor.facts["pid"])
    executor.end()
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(ExecutorGone):
        nursery.start()
    nursery.start().end()
