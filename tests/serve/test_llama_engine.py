"""The llama engine's own promise, and the thread that steps an engine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from forge.serve.engine.worker import Worker
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import ModelSettings
from forge.serve.port import EngineStatus
from tests.serve.stepped import request, run

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Reference


def test_the_prompt_of_a_group_is_evaluated_once(tied: Reference, tmp_path: Path) -> None:
    settings = ModelSettings(model_dir=tied.path, work_dir=tmp_path, context_tokens=1280)
    engine = LlamaEngine(settings, num_slots=6)
    run(engine, request(700, n=8), request(5, n=2))
    assert engine.status().prompt_tokens == 700 + 5
    engine.close()


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
