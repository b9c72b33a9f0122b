"""The engine's thread and the event loop: no request is left in the engine."""

from __future__ import annotations

import threading
from typing import Any, cast

import anyio
import pytest

from forge.serve.engine.worker import Worker
from forge.serve.port import EngineStatus


class FakeEngine:
    """Counts added and aborted requests."""

    is_active, features = False, frozenset[str]()

    def __init__(self) -> None:
        self.admitted: list[Any] = []
        self.aborted: list[Any] = []

    def add(self, request: Any) -> None:
        self.admitted.append(request)

    def abort(self, request: Any) -> None:
        self.aborted.append(request)

    def status(self) -> EngineStatus:
        return EngineStatus(version=0)

    def close(self) -> None:
        return


@pytest.mark.anyio
async def test_a_request_cancelled_before_it_is_admitted_is_aborted() -> None:
    engine, is_free = FakeEngine(), threading.Event()
    worker = Worker(lambda: cast("Any", engine), name="fake")
    worker.start()
    try:
        async with anyio.create_task_group() as busy:
            busy.start_soon(worker.call, lambda _: is_free.wait(5))
            async with anyio.create_task_group() as asking:
                asking.start_soon(worker.generate, cast("Any", "request"))
                await anyio.sleep(0.01)
                assert not engine.admitted
                asking.cancel_scope.cancel()
            is_free.set()
        await worker.call(lambda _: None)
        assert (engine.admitted, engine.aborted) == (["request"], ["request"])
    finally:
        worker.stop()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
