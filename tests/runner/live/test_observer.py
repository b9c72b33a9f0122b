"""Children, here and on nodes, and events about them reach the store from synchronous code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from forge.records import Event
from forge.runner.live.observer import StoreObserver
from forge.runner.work import Work

if TYPE_CHECKING:
    from forge.rollout.ports import Sink

pytestmark = pytest.mark.anyio


async def test_a_slow_judge_is_one_event_and_one_line() -> None:
    rows: list[Any] = []
    said: list[str] = []

    async def put(row: Any) -> None:
        rows.append(row)

    observer = StoreObserver(cast("Sink", SimpleNamespace(put=put)), 1)
    run = SimpleNamespace(observer=observer, console=SimpleNamespace(say=said.append))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(observer.drain)
        Work(run=cast("Any", run), past=cast("Any", None))._note_pace("judge-3 is slow")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    (event,) = rows
    assert isinstance(event, Event)
    assert (event.kind, event.message) == ("judge_pace", "judge-3 is slow")
    assert said == ["judge-3 is slow"]


class Rows(list[Any]):
    async def put(self, *records: Any) -> None:
        self.extend(records)


async def test_the_devices_of_a_child_on_a_node_name_the_node() -> None:
    rows = Rows()
    observer = StoreObserver(rows, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(observer.drain)
        observer.started(
            "judge-0", pid=7, devices="GPU-a", log_path=Path("x.log"), node="gpu-7 10.0.0.7"
        )
        observer.ended("judge-0", pid=7, reason="its host is gone: lost")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert [getattr(row, "devices", None) for row in rows] == ["gpu-7 10.0.0.7: GPU-a", None]
    assert observer.seen["judge-0"].reason == "its host is gone: lost"


def test_a_pid_of_another_machine_is_neither_killed_nor_forgotten_here() -> None:
    observer = StoreObserver(Rows(), 1)
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        observer.started(
            "judge-0", pid=child.pid, devices="cpu", log_path=Path("x"), node="gpu-7 10.0.0.7"
        )
        observer.kill_all()
        assert child.poll() is None, "the pid is the node's"
        observer.started("serve-0", pid=child.pid, devices="cpu", log_path=Path("y"))
        observer.ended("judge-0", pid=child.pid, reason="stopped")
        observer.kill_all()
        assert child.wait(10) == -9
    finally:
        child.kill()
        child.wait()
