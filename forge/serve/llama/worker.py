"""The engine's thread: owns every llama.cpp call, takes work from the event loop between two steps.

    event loop ── call(fn), generate(request) ──▶ queue ──▶ engine thread: commands, then a step
        ▲──────────────── futures, chunks ────────────────────────┘

Used by `app`. Promises: one thread touches the engine; whoever is cancelled while waiting (its
client hung up) has its sequences aborted; where a step fails, everyone waiting is told and the
process ends with 70, since the engine's state is then unknown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from forge.errors import ForgeError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.records import Finish
    from forge.serve.llama.engine import Engine
    from forge.serve.llama.request import Request

logger = logging.getLogger(__name__)

T = TypeVar("T")
FAULT_EXIT = 70
FAULT_GRACE_S = 0.3
"""For the last answers to leave before the process ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one step added to one sample of a streamed request."""

    index: int
    token_ids: list[int]
    finish: Finish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The engine's numbers after its last step."""

    version: int
    running: int = 0
    waiting: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    recomputed_tokens: int = 0
    step_s: float = 0.0
    """Seconds spent in steps."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request that somebody waits for."""

    done: Future[None]
    on_chunk: Callable[[Chunk], None] | None
    sent: Counter[int] = field(default_factory=Counter)
    """Tokens already streamed, by sample."""


class Worker:
    """Runs an engine in a thread of its own. Async methods are for the one event loop of the
    process.
    """

    def __init__(self, make_engine: Callable[[], Engine]) -> None:
        self._queue: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._pending: dict[Request, Pending] = {}
        self._step_s = 0.0
        self._started: Future[Status] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(make_engine,), name="engine", daemon=True
        )
        self.status = Status(version=0)

    def start(self) -> None:
        """Make the engine; returns when it can serve. Raises what making it raised."""
        self._thread.start()
        self.status = self._started.result()

    def stop(self) -> None:
        """End the thread after its current step."""
        self._queue.put(None)
        self._thread.join(timeout=5.0)

    # -- the event loop's side -------------------------------------------------------------------

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on the engine between two steps."""
        future: Future[T] = Future()

        def command(engine: Engine) -> None:
            try:
                future.set_result(function(engine))
            except Exception as error:
                future.set_exception(error)

        future.set_running_or_notify_cancel()
        self._queue.put(command)
        return await asyncio.wrap_future(future)

    async def generate(
        self, request: Request, *, on_chunk: Callable[[Chunk], None] | None = None
    ) -> None:
        """Return when every sample of the request is finished. `on_chunk` hears each step, in the
        event loop.

        Raises ConfigError for a request that cannot be served, MachineError for one that had to be
        given up.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        listener = on_chunk and _threadsafe(on_chunk)
        pending = Pending(done=future, on_chunk=listener)
        try:
            # Cancelled here too: the command is queued, and the abort comes after it.
            await self.call(lambda engine: self._admit(engine, request, pending))
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._queue.put(lambda engine: self._abort(engine, request))
            raise
        if request.error:
            raise MachineError(request.error)

    # -- the thread's side -----------------------------------------------------------------------

    def _run(self, make_engine: Callable[[], Engine]) -> None:
        try:
            engine = make_engine()
        except Exception as error:
            self._started.set_exception(error)
            return
        self._started.set_result(Status(version=engine.version))
        try:
            while self._run_commands(engine):
                self._step(engine)
        except Exception as error:
            logger.exception("the engine failed; this process ends and is started again")
            self._fail_all(error)
            time.sleep(FAULT_GRACE_S)
            os._exit(FAULT_EXIT)
        engine.close()

    def _run_commands(self, engine: Engine) -> bool:
        """Run what is queued, waiting only while there is nothing to decode. False: stop."""
        while True:
            try:
                command = self._queue.get(block=not engine.is_active)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(engine)
            self._note(engine)

    def _step(self, engine: Engine) -> None:
        start = time.monotonic()
        finished = engine.step()
        self._step_s += time.monotonic() - start
        self._note(engine)
        for request, pending in self._pending.items():
            if pending.on_chunk is not None:
                self._stream(engine, request, pending)
        for request in {sample.request for sample in finished}:
            if request.is_done and (pending := self._pending.pop(request, None)) is not None:
                pending.done.set_result(None)

    def _stream(self, engine: Engine, request: Request, pending: Pending) -> None:
        assert pending.on_chunk is not None
        for sample in request.samples:
            new = engine.new_tokens(sample, pending.sent[sample.index])
            if new:
                pending.sent[sample.index] += len(new)
                pending.on_chunk(Chunk(index=sample.index, token_ids=new, finish=sample.finish))

    def _admit(self, engine: Engine, request: Request, pending: Pending) -> None:
        engine.add(request)
        self._pending[request] = pending

    def _abort(self, engine: Engine, request: Request) -> None:
        if self._pending.pop(request, None) is not None:
            engine.abort(request)

    def _note(self, engine: Engine) -> None:
        counts = engine.counts
        self.status = Status(
            version=engine.version,
            running=engine.num_running,
            waiting=engine.num_waiting,
            generated_tokens=counts.generated_tokens,
            prompt_tokens=counts.prompt_tokens,
            recomputed_tokens=counts.recomputed_tokens,
            step_s=self._step_s,
        )

    def _fail_all(self, error: Exception) -> None:
        told = (
            error
            if isinstance(error, ForgeError)
            else MachineError(f"the engine failed: {error!r}")
        )
        for pending in self._pending.values():
            pending.done.set_exception(told)


def _threadsafe(function: Callable[[Chunk], None]) -> Callable[[Chunk], None]:
    loop = asyncio.get_running_loop()

    def hand_over(chunk: Chunk) -> None:
        loop.call_soon_threadsafe(function, chunk)

    return hand_over
