"""Untrusted: frames and answers of a candidate's process on a GPU; `gpu_runner` serves the judge.

Forked by the zygote; knows nothing of forge but what the zygote has imported for it, no reference,
no tolerance, no expected output. What it reports of itself (launches, compiled kernels, torch's
work) is evidence, not proof: the judge trusts only what it reads from the shared memory.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import traceback
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.session import KernelRefused, Session

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = struct.Struct("!4sBI")
MAGIC = b"FRG1"
CANDIDATE, CALL, DONE, FAILED = 7, 8, 9, 10
MAX_MESSAGE_CHARACTERS = 1000


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
    """An error, at the candidate's innermost line."""
    line = _candidate_line(error, session.file)
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
