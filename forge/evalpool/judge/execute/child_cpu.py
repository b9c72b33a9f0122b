"""Serves the judge in a sandboxed child without a GPU: runs candidates' programs on their memory.

    judge ── CANDIDATE (+ memory, program) ─▶ load, init, call of one set ── DONE | FAILED ─▶
          ── CALL set k (+ program) ────────▶ call on what lies there     ── DONE | FAILED ─▶
          ── RELEASE ───────────────────────▶ unmap, forget                       ── DONE ─▶

Forked by the zygote as the role `evaluator`. The code here is the judge's, the program is not: a
program that finds an error in it gains a process without network, files or expected outputs.

Promise: DONE after RELEASE says that nothing of a candidate is left but plans of kernels, which
depend on their text alone: Python refuses to unmap memory that any array still refers to, and the
child ends where it does. Freed memory keeps its bytes: an allocation of a program is poisoned
before anything can read it, and the judge keeps no child that ran torch's computations.

Body of CANDIDATE: `Reference.request` (`num_bytes`, `tensors`, `state`, `init`, `sets`, `slots`),
`wide_tensors` and `kinds` where the draw has a wide layout, and optionally `has_tf32`, and what a
CALL has. Body of CALL: `set` (0), `slots`, and optionally `is_wide`, `turn`, `is_question` and
`reruns_init`. Both may bring a program in a sealed memfd; CANDIDATE's descriptors begin with the
memory's. A wide call runs the program with `kinds` in float64, on the wide layout. A question's
program ends where a value is read: nothing goes to slots, and `values` of DONE has a number for
each of its outputs. A question runs first alternatives.
"""

from __future__ import annotations

import gc
import itertools
import math
import mmap
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.ma  # pyright: ignore[reportUnusedImport]  # np.unique needs it in a sandbox
from numpy.typing import NDArray

from forge.evalpool.judge.channel import frames, heap
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.nesting import mapped
from forge.evalpool.judge.execute.cpu import CpuExecutor
from forge.evalpool.judge.execute.outcome import ExecutionFailed
from forge.evalpool.judge.program import wire
from forge.evalpool.judge.program.format import ITEM_BYTES, Program
from forge.evalpool.judge.ttir.decisions import Noted, open_sides
from forge.evalpool.judge.wide.program import Narrow, widened

Layout: TypeAlias = list[Any]
"""Type, shape and first byte of each tensor."""
COLLECTED_EVERY = 32
"""Candidates behind which Python collects what refers to itself: it takes 10 ms."""
MAX_FAULTS = 20
MAX_MESSAGE_CHARACTERS = 1000


def warm_up() -> None:
    """Loads everything that a child will use, in the zygote: a sandbox has no files to load."""
    from forge.evalpool.judge.execute import operations
    from forge.evalpool.judge.program.ops import schemas
    from forge.evalpool.judge.ttir.plan import plan_of

    assert operations.operation("aten.zeros.default")
    assert schemas()
    plan_of("module { tt.func public @k() { tt.return } }")


def main(sock: socket.socket) -> None:
    """Serves the judge until it hangs up."""
    heap.keep_usual()
    for number in itertools.count(1):
        _unmap(_serve_candidate(sock))
        if not number % COLLECTED_EVERY:
            gc.collect()
        frames.send(sock, Kind.DONE, {})


def _unmap(memory: mmap.mmap) -> None:
    """Raises BufferError if an array still refers to the memory."""
    try:
        memory.close()
    except BufferError:
        gc.collect()  # errors refer to the frames that they came through
        memory.close()


def _serve_candidate(sock: socket.socket) -> mmap.mmap:
    """Serves the judge until it releases a candidate. Returns its memory, still mapped."""
    first = frames.asked(sock, Kind.CANDIDATE, takes_fds=True)
    memory_fd, *rest = first.fds
    memory = mmap.mmap(memory_fd, first.body["num_bytes"])
    os.close(memory_fd)
    session = Session(request=first.body, memory=memory)
    _serve(sock, session, first.body, rest)
    while True:
        frame = frames.asked(sock, Kind.CALL, Kind.RELEASE, takes_fds=True)
        if frame.kind is Kind.RELEASE:
            return memory
        _serve(sock, session, frame.body, list(frame.fds))


def _serve(sock: socket.socket, session: Session, body: dict[str, Any], fds: list[int]) -> None:
    """Runs one call and reports it. The boundary: every error ends here."""
    try:
        answer = session.call(body, program=_read(fds[0]) if fds else None)
    except ExecutionFailed as error:
        _fail(sock, error.kind, error.message, error.line)
    except wire.InvalidProgram as error:
        _fail(sock, "invalid", str(error))
    except Narrow as error:
        _fail(sock, "narrow", str(error))
    except MemoryError as error:
        _fail(sock, "memory", str(error))
    except Exception as error:
        _fail(sock, "internal", f"{type(error).__name__}: {error}")
    else:
        frames.send(sock, Kind.DONE, answer)


def _fail(sock: socket.socket, kind: str, message: str, line: int = 0) -> None:
    message = message[:MAX_MESSAGE_CHARACTERS]
    frames.send(sock, Kind.FAILED, {"type": kind, "message": message, "line": line})


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@dataclass(slots=True, kw_only=True)
class Session:
    """One candidate's programs over one memory."""

    request: dict[str, Any]
    memory: mmap.mmap
    _programs: dict[bool, Program] = field(default_factory=dict[bool, Program])
    """The current program, and in float64 where a call was wide."""
    _noted: Noted = field(default_factory=dict[Any, Any])
    """Sides of decisions that its kernels took so far."""
    _is_wide: bool = False
    _executors: dict[tuple[int, ...], CpuExecutor] = field(
        default_factory=dict[tuple[int, ...], CpuExecutor]
    )
    """Executors of the last call's program, by the places of their inputs."""

    def call(self, body: dict[str, Any], *, program: bytes | None = None) -> dict[str, Any]:
        """One call; the body of DONE. Raises ExecutionFailed or InvalidProgram, and Narrow where
        the program cannot be run in float64."""
        if program is not None:
            self._executors.clear()
            self._programs = {False: wire.loads(program)}
        if not self._programs:
            raise ExecutionFailed("misfit", "no program came")
        places = tuple(_tensors(self.request["sets"][body.get("set", 0)]))
        current, layout = self._turned(places, is_wide=body.get("is_wide", False))
        executor = self._executors.get(places)
        turn, shift = body.get("turn", (0, 0))
        if executor is None or body.get("reruns_init") or executor.reruns_init:
            executor = executor or self._bind(current, places, layout)
            executor.init(turn=turn, shift=shift)
            self._executors[places] = executor
        outcome = executor.forward(turn=turn, shift=shift)
        faults = [asdict(one) for one in outcome.faults[:MAX_FAULTS]]
        done: dict[str, Any] = {"num_bytes": outcome.num_bytes, "faults": faults}
        done["open"] = open_sides(self._noted)
        if body.get("is_question"):
            done["values"] = [executor.tensors.torch(number).item() for number in current.outputs]
        else:
            self._deliver(executor, body.get("slots", self.request["slots"]), layout)
        return done

    def _turned(self, places: tuple[int, ...], *, is_wide: bool) -> tuple[Program, Layout]:
        """The current program and its memory's layout. Executors of the other one go, and with them
        what they hold. Raises Narrow."""
        if is_wide != self._is_wide:
            self._executors.clear()
            self._is_wide = is_wide
        if is_wide and True not in self._programs:
            kinds = frozenset(self.request["kinds"])
            real = [one[0] for one in self.request["tensors"]]
            self._programs[True] = widened(
                self._programs[False],
                kinds,
                inputs=[real[place] for place in places],
                parameters={name: real[place] for name, place in self.request["state"]},
            )
        return self._programs[is_wide], self.request["wide_tensors" if is_wide else "tensors"]

    def _bind(self, program: Program, places: tuple[int, ...], layout: Layout) -> CpuExecutor:
        parameters = {name: self._bytes(place, layout) for name, place in self.request["state"]}
        given = enumerate(dict.fromkeys(_tensors(self.request["init"])))
        parameters |= {f"init.{number}": self._bytes(place, layout) for number, place in given}
        inputs = [self._bytes(place, layout) for place in places]
        has_tf32 = bool(self.request.get("has_tf32")) and not self._is_wide
        return CpuExecutor(program, inputs, parameters, has_tf32=has_tf32, noted=self._noted)

    def _bytes(self, place: int, layout: Layout) -> NDArray[np.uint8]:
        dtype, shape, offset = layout[place]
        count = math.prod(shape) * ITEM_BYTES[dtype]
        return np.frombuffer(self.memory, np.uint8, count=count, offset=offset)

    def _deliver(self, executor: CpuExecutor, slots: list[int], layout: Layout) -> None:
        """Copies outputs to their slots where they have the slot's form."""
        program = executor.program
        for number, slot in zip(program.outputs, slots, strict=False):
            one, (dtype, shape, _) = program.tensors[number], layout[slot]
            if dtype == one.dtype and tuple(shape) == one.shape:
                executor.tensors.copy(number, self._bytes(slot, layout))


def _tensors(tree: Any) -> list[int]:
    found: list[int] = []
    mapped(tree, found.append)
    return found
