"""The thread that steps an engine (llama, hf): it makes every call into the engine and takes work
from the event loop between two steps.

    event loop ── call(fn), generate(request) ──▶ queue ──▶ engine thread: commands, then a step
        ▲──────────────── futures, chunks ────────────────────────┘

Promises: one thread touches the engine; a request that is cancelled while it waits (its client hung
up) has its sequences aborted; if a step fails, all waiting requests get the error and the process
ends with 70, since the engine's state is then unknown; all work on a shared GPU happens inside
`turns`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from forge.errors import ForgeError, MachineError
from forge.serve.port import Chunk, EngineSample, EngineStatus, Request

logger = logging.getLogger(__name__)

T = TypeVar("T")
FAULT_EXIT = 70
FAULT_GRACE_S = 0.3
"""Time for the last answers to be sent before the process ends."""


class StepEngine(Protocol):
    """An engine that is idle between two steps. Called from one thread only. What is not described
    here is as in EnginePort."""

    features: frozenset[str] = frozenset()

    def check(self, request: Request) -> None: ...

    def add(self, request: Request) -> None:
        """Check a request and queue it."""

    def abort(self, request: Request) -> None:
        """End the unfinished samples of a request; they keep their tokens."""

    @property
    def is_active(self) -> bool:
        """True if there is something to step."""
        ...

    def step(self) -> list[EngineSample]:
        """Generate one token for every running sample. Returns the finished ones."""
        ...

    def new_tokens(self, sample: EngineSample, start: int) -> list[int]:
        """Tokens of a sample from an index on, running or not."""
        ...

    def load_weights(self, path: Path, *, version: int) -> None:
        """Running samples are evaluated again under the new weights."""

    def score(self, prompt: np.ndarray, completion: np.ndarray) -> np.ndarray: ...

    def sleep(self) -> None:
        """Asked of engines with SLEEP alone, as `wake`."""

    def wake(self) -> None:
        """See `sleep`."""

    def status(self) -> EngineStatus:
        """Numbers of the engine; the worker adds `step_s`."""
        ...

    def close(self) -> None:
        """Free all memory. The engine cannot be used afterwards."""


@dataclass(slots=True, eq=False)
class Pending:
    done: Future[None]
    on_chunk: Callable[[Chunk], object] | None
    sent: Counter[int] = field(default_factory=Counter)


class Worker:
    """Runs an engine in its own thread. Async methods are for the event loop of the process."""

    def __init__(
        self, make_engine: Callable[[], StepEngine], *, name: str,
        turns: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self.name = name
        self.features: frozenset[str] = frozenset()
        self._turns = turns
        self._queue: queue.SimpleQueue[Callable[[StepEngine], None] | None] = queue.SimpleQueue()
        self._pending: dict[Request, Pending] = {}
        self._step_s = 0.0
        self._started: Future[StepEngine] = Future()
        run = partial(self._run, make_engine)
        self._thread = threading.Thread(target=run, name="engine", daemon=True)
        self._status = EngineStatus(version=0)

    def start(self) -> None:
        self._thread.start()
        engine = self._started.result()
        self.features = engine.features
        self._status = engine.status()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._queue.put(None)
        self._thread.join(timeout=5.0)

    # -- the event loop's side -------------------------------------------------------------------

    def status(self) -> EngineStatus:
        return self._status

    async def check(self, request: Request) -> None:
        await self.call(lambda engine: engine.check(request))

    async def load_weights(self, path: Path, *, version: int) -> None:
        await self._call_on_card(lambda engine: engine.load_weights(path, version=version))

    async def score(self, prompt: np.ndarray, completion: np.ndarray) -> list[float]:
        scored = await self._call_on_card(lambda engine: engine.score(prompt, completion))
        return scored.tolist()

    async def sleep(self) -> None:
        await self._call_on_card(lambda engine: engine.sleep())

    async def wake(self) -> None:
        await self._call_on_card(lambda engine: engine.wake())

    async def call(self, function: Callable[[StepEngine], T]) -> T:
        """Run a function on the engine between two steps."""
        future: Future[T] = Future()

        def command(engine: StepEngine) -> None:
            try:
                future.set_result(function(engine))
            except Exception as error:
                future.set_exception(error)

        future.set_running_or_notify_cancel()
        self._queue.put(command)
        return await asyncio.wrap_future(future)

    async def _call_on_card(self, function: Callable[[StepEngine], T]) -> T:
        def held(engine: StepEngine) -> T:
            with self._turns():
                return function(engine)

        return await self.call(held)

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        in_loop = asyncio.get_running_loop().call_soon_threadsafe
        pending = Pending(done=future, on_chunk=on_chunk and partial(in_loop, on_chunk))
        try:
            # If this is cancelled, the command is queued already, and the abort follows it.
            await self.call(lambda engine: self._admit(engine, request, pending))
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._queue.put(lambda engine: self._abort(engine, request))
            raise
        if request.error:
            raise MachineError(request.error)

    # -- the thread's side -----------------------------------------------------------------------

    def _run(self, make_engine: Callable[[], StepEngine]) -> None:
        try:
            with self._turns():
                engine = make_engine()
        except Exception as error:
            self._started.set_exception(error)
            return
        self._started.set_result(engine)
        try:
            while self._run_commands(engine):
                self._step(engine)
        except Exception as error:
            logger.exception("the engine failed; this process ends and is started again")
            self._fail_all(error)
            time.sleep(FAULT_GRACE_S)
            os._exit(FAULT_EXIT)
        engine.close()

    def _run_commands(self, engine: StepEngine) -> bool:
        """Run the queued commands; wait for one only if there is nothing to step. False means
        stop."""
        while True:
            try:
                command = self._queue.get(block=not engine.is_active)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(engine)
            self._note(engine)

    def _step(self, engine: StepEngine) -> None:
        with self._turns():
            start = time.monotonic()
            finished = engine.step()
        self._step_s += time.monotonic() - start
        self._note(engine)
        for request, pending in self._pending.items():
            self._stream(engine, request, pending)
        for request in {sample.request for sample in finished}:
            if request.is_done and (pending := self._pending.pop(request, None)) is not None:
                pending.done.set_result(None)

    def _stream(self, engine: StepEngine, request: Request, pending: Pending) -> None:
        if pending.on_chunk is None:
            return
        for sample in request.samples:
            new = engine.new_tokens(sample, pending.sent[sample.index])
            if new:
                pending.sent[sample.index] += len(new)
                pending.on_chunk(Chunk(index=sample.index, token_ids=new, finish=sample.finish))

    def _admit(self, engine: StepEngine, request: Request, pending: Pending) -> None:
        engine.add(request)
        self._pending[request] = pending

    def _abort(self, engine: StepEngine, request: Request) -> None:
        if self._pending.pop(request, None) is not None:
            engine.abort(request)

    def _note(self, engine: StepEngine) -> None:
        self._status = replace(engine.status(), step_s=self._step_s)

    def _fail_all(self, error: Exception) -> None:
        if not isinstance(error, ForgeError):
            error = MachineError(f"the engine failed: {error!r}")
        for pending in self._pending.values():
            pending.done.set_exception(error)
