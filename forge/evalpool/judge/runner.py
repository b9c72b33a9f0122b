"""Untrusted: runs one candidate in the sandbox and leaves its outputs in judge-owned memory.

Forked by the zygote into a process of its own; knows nothing of forge but what the zygote has
imported for it (`session.py` and what that needs), no reference, no tolerance, no expected output.
What it reports of itself (launches, compiled kernels, torch's work) is evidence, not proof: the
judge trusts only what it reads from the shared memory and from the kernel.

    judge ── CANDIDATE (+ memory) ─▶ import, construct, load parameters, call 0 ── DONE | FAILED ──▶
          ── CALL set k ───────────▶ call on inputs k                           ── DONE | FAILED ──▶
          ── CALL ghost ───────────▶ call 0 with launches doing nothing         ── DONE | FAILED ──▶
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from triton.runtime import interpreter

from forge.evalpool.judge.session import KernelRefused, Session

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = struct.Struct("!4sBI")
MAGIC = b"FRG1"
CANDIDATE, CALL, DONE, FAILED = 7, 8, 9, 10
FILE = "/tmp/work/candidate.py"
MAX_MESSAGE_CHARACTERS = 1000


def main(sock: socket.socket, *, compiler: Any, refused: type[Exception], file: str = FILE) -> None:
    """Serves the judge on `sock` until it hangs up. Never returns an answer of its own."""
    kind, request, fds = _receive(sock)
    if kind != CANDIDATE or not fds:
        return
    memory = mmap.mmap(fds[0], request["num_bytes"])
    session = Session(request, memory=memory, compiler=compiler, refused=refused, file=file)
    _watch_launches(session)
    # Makes torch.empty NaN: what a kernel leaves unwritten is told from what it wrote. The public
    # function imports the compiler stack (2 s).
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    _answer(sock, session, _first_call)
    while True:
        kind, request, _ = _receive(sock)
        session.is_ghost = bool(request["ghost"])
        _answer(sock, session, partial(Session.call, number=request["set"], slots=request["slots"]))


def _first_call(session: Session) -> list[Any]:
    session.prepare()
    return session.call(0, slots=session.request["slots"])


def _answer(sock: socket.socket, session: Session, work: Callable[..., Any]) -> None:
    """Does the work and reports it. The boundary: whatever a candidate raises ends here."""
    try:
        outputs = work(session)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt of the candidate
        _send(sock, FAILED, _describe(error, session))
        return
    body = {
        "outputs": outputs,
        "num_launches": session.num_launches,
        "kernels": sorted(session.compiled),
        "has_derived": session.has_derived,
        "returned": session.returned,
        "work": session.work,
        "num_replays": session.num_replays,
        "event_us": session.event_us,
    }
    _send(sock, DONE, body)


def _describe(error: BaseException, session: Session) -> dict[str, Any]:
    """The innermost error behind the interpreter's wrappers, at the candidate's innermost line."""
    line = _candidate_line(error, session.file)
    while isinstance(error, interpreter.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
        line = _candidate_line(error, session.file) or line
    is_refused = isinstance(error, KernelRefused)
    return {
        "stage": "compile" if is_refused else session.stage,
        "type": type(error).__name__,
        "message": str(error)[:MAX_MESSAGE_CHARACTERS],
        "line": session.compile_line if is_refused else line,
        "num_launches": session.num_launches,
        "kernels": sorted(session.compiled),
    }


def _candidate_line(error: BaseException, file: str) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [
        number
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]
    return lines[-1] if lines else None


def _watch_launches(session: Session) -> None:
    original = interpreter.InterpretedFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return None
        try:
            if session.launched(self, args, kwargs):
                grid = session.settled(grid, self, args, kwargs)
                return original(self, *args, grid=grid, warmup=False, **kwargs)
        except BaseException as error:
            session.failed_launch = session.failed_launch or error
            raise
        return None

    interpreter.InterpretedFunction.run = run


def _receive(sock: socket.socket) -> tuple[int, dict[str, Any], list[int]]:
    """The judge is trusted: it may send any length. Exits when it has hung up."""
    data, fds, _, _ = socket.recv_fds(sock, HEADER.size, 4)
    if len(data) < HEADER.size:
        sys.exit(0)
    _, kind, length = HEADER.unpack(data)
    parts = bytearray()
    while len(parts) < length:
        part = sock.recv(length - len(parts))
        if not part:
            sys.exit(0)
        parts += part
    return kind, json.loads(parts), fds


def _send(sock: socket.socket, kind: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    sock.sendall(HEADER.pack(MAGIC, kind, len(data)) + data)
