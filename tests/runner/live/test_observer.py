"""Events about children reach the store from synchronous code."""

from __future__ import annotations

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
