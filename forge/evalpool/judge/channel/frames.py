"""Fixed-format frames between the judge and its children: a header, a JSON object, descriptors.

Both ends of every socket pair in this folder use it. Promise: a peer that sends wrong lengths,
invalid data or nothing costs the reader at most `MAX_BODY_BYTES`, `MAX_FDS` descriptors and the
deadline; received data is never unpickled or evaluated.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic
from typing import Any, TypeAlias

HEADER = struct.Struct("!4sBI")
"""Magic, kind, length of the body in bytes."""
MAGIC = b"FRG1"
MAX_BODY_BYTES = 4 << 20
MAX_FDS = 4
IDLE_S = 1e9
"""Wait of a child for its judge: no limit, since it ends when the judge closes the socket."""
ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_FDS) + socket.CMSG_SPACE(12)
"""Room for descriptors and for the sender's credentials; the kernel drops what does not fit."""


class Kind(IntEnum):
    """Kinds of frames."""

    READY = 1
    """Zygote to judge: it has imported everything; its isolation and versions."""
    SPAWN = 2
    """Judge to zygote: fork a sandboxed child onto the attached socket."""
    SPAWNED = 3
    REAP = 4
    """Judge to zygote: kill this child and report its wait status."""
    REAPED = 5
    HELLO = 6
    """Child to judge: it is in its sandbox and waits for an inspection."""
    CANDIDATE = 7
    """Judge to capture child: code and request. To evaluator: the program, its memory, call 0."""
    CALL = 8
    """Judge to child: one more call, compilation, timing or test."""
    DONE = 9
    FAILED = 10
    PROBLEM = 11
    """Judge to oracle: source of a reference."""
    LAYOUT = 12
    """Oracle to judge: forms of the tensors that it has computed."""
    FILL = 13
    """Judge to oracle: write the tensors into the attached memory."""
    PROGRESS = 14
    """Oracle to judge: its draw goes on; processor time of the reference until now."""
    EXAMINE = 20
    FOUND = 21
    """Examiner to judge: the findings of one step."""
    ASK = 30
    """Capture child to judge: a question with the program until now (`capture/exchange.py`)."""
    ANSWER = 31
    RELEASE = 32
    """Judge to evaluator: give up everything of the candidate."""
    FORK = 40
    """Judge to nursery: make an executor of the attached socket and progress memory."""
    FORKED = 41
    """Nursery to judge: the process, as a descriptor."""
    LOAD = 42
    """Judge to executor, as those below: a program and its images in memory, and the block."""
    RUN = 43
    TIME = 44
    NODES = 45
    TUNE = 46
    UNLOAD = 47
    REFUSED = 48
    """Executor to judge: the program cannot be run; the context is sound."""
    FAULT = 49
    """Executor to judge: the program lost the context; this process ends now."""


class FrameError(Exception):
    """The peer broke the format."""


class PeerGone(Exception):
    """The peer closed its end."""


class DeadlinePassed(Exception):
    """The peer was silent past the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message."""

    kind: Kind
    body: dict[str, Any]
    fds: tuple[int, ...] = ()
    """The receiver closes them."""


def send(
    sock: socket.socket,
    kind: Kind,
    body: dict[str, Any],
    *,
    fds: tuple[int, ...] = (),
    tail: bytes = b"",
    timeout_s: float = 10.0,
) -> None:
    """Sends a frame; `tail` follows it, and the peer reads it by itself (`read`). Raises
    DeadlinePassed or PeerGone."""
    data = json.dumps(body, separators=(",", ":")).encode()
    header = HEADER.pack(MAGIC, kind, len(data))
    sock.settimeout(timeout_s)
    try:
        if fds:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            sock.sendmsg([header], rights)
            sock.sendall(data + tail)
        else:  # a child may not call sendmsg at every level
            sock.sendall(header + data + tail)
    except TimeoutError as error:
        raise DeadlinePassed(f"not read within {timeout_s:g} s") from error
    except OSError as error:
        raise PeerGone(str(error)) from error


Deadline: TypeAlias = float | Callable[[], float]
"""A monotonic time, or a function that returns the seconds that are left."""


def receive(
    sock: socket.socket, *, deadline: Deadline, expected: tuple[Kind, ...], takes_fds: bool = False
) -> Frame:
    """One frame of an expected kind, before `deadline`. Descriptors are not received unless asked
    for: a frame of a million parts, each with some, would take all that the reader may have. Raises
    FrameError (not the format, too long, more than MAX_FDS descriptors, or another kind), PeerGone
    or DeadlinePassed."""
    fds: list[int] = []
    kept = fds if takes_fds else None
    try:
        magic, kind, length = HEADER.unpack(read(sock, HEADER.size, deadline=deadline, fds=kept))
        if magic != MAGIC or length > MAX_BODY_BYTES:
            raise FrameError(f"bad header: magic {magic!r}, length {length}")
        body = _parse(read(sock, length, deadline=deadline, fds=kept))
        if kind not in [int(one) for one in expected]:
            raise FrameError(f"frame kind {kind} where {[one.name for one in expected]} may come")
        return Frame(kind=Kind(kind), body=body, fds=tuple(fds))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def asked(sock: socket.socket, *expected: Kind, takes_fds: bool = False) -> Frame:
    """The judge's next request to this child, whenever it comes: the end of the judge closes the
    socket. Raises as `receive`."""
    deadline = monotonic() + IDLE_S
    return receive(sock, deadline=deadline, expected=expected, takes_fds=takes_fds)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"body is no JSON: {type(error).__name__}") from error
    if not isinstance(body, dict):
        raise FrameError(f"body is a {type(body).__name__}, not an object")
    return body


def read(
    sock: socket.socket, size: int, *, deadline: Deadline, fds: list[int] | None = None
) -> bytes:
    """Exactly `size` bytes; descriptors are appended to `fds`, or dropped by the kernel. Raises
    PeerGone or DeadlinePassed."""
    parts = bytearray()
    while len(parts) < size:
        left_s = deadline() if callable(deadline) else deadline - monotonic()
        if left_s <= 0:
            raise DeadlinePassed("silent past the deadline")
        sock.settimeout(left_s)
        try:
            data = _take(sock, min(size - len(parts), 1 << 16), fds)
        except TimeoutError:
            continue
        except OSError as error:
            raise PeerGone(str(error)) from error
        if not data:
            raise PeerGone("closed")
        parts += data
    return bytes(parts)


def _take(sock: socket.socket, most: int, fds: list[int] | None) -> bytes:
    if fds is None:
        return sock.recv(most)
    data, ancillary, _, _ = sock.recvmsg(most, ANCILLARY_BYTES)
    for level, kind, sent in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(sent[: len(sent) - len(sent) % received.itemsize])
            fds.extend(received)
    if len(fds) > MAX_FDS:
        raise FrameError(f"more than {MAX_FDS} descriptors with one frame")
    return data


def count(value: object) -> int:
    """A number as a child sent it; 0 for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 31 else 0
