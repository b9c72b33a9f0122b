"""Messages between the judge and the executor's process: a header, a JSON object, a blob.

Both ends use it. The judge believes an executor less than itself, as a program's kernels run in it:
an answer is bounded and never unpickled. A blob travels to the executor only.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

HEADER = struct.Struct("!4sBII")
"""Magic, kind, bytes of the JSON object, bytes of the blob."""
MAGIC = b"FEX1"
MAX_BODY_BYTES = 4 << 20
MAX_BLOB_BYTES = 512 << 20
MAX_FDS = 2
CHUNK_BYTES = 1 << 20


class Message(IntEnum):
    """Kind of a message."""

    READY = 1
    """Executor: the context is made; facts about it."""
    LOAD = 2
    """Judge: a program, its images, the descriptor of the block."""
    RUN = 3
    """Judge: calls that are not timed."""
    TIME = 4
    """Judge: timed calls."""
    NODES = 5
    """Judge: time each node."""
    TUNE = 6
    """Judge: fix the choices."""
    UNLOAD = 7
    DONE = 8
    """Executor: what the request gave."""
    REFUSED = 9
    """Executor: the program cannot be run; the context is sound."""
    FAULT = 10
    """Executor: the program lost the context; this process ends now."""
    FORK = 11
    """Judge to nursery: make an executor of the attached socket and progress memory."""
    FORKED = 12
    """Nursery: the process, as a descriptor."""


class MessageError(Exception):
    """The peer broke the format, or sent more than is allowed."""


class PeerEnded(Exception):
    """The peer closed its end: it ended."""


class Silent(Exception):
    """The peer was silent past the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message."""

    kind: Message
    body: dict[str, Any]
    blob: bytes = b""
    fds: tuple[int, ...] = ()
    """The receiver's to close."""


def send(
    sock: socket.socket,
    kind: Message,
    body: dict[str, Any],
    *,
    blob: bytes = b"",
    fds: tuple[int, ...] = (),
    timeout_s: float | None = 30.0,
) -> None:
    """Raises Silent or PeerEnded."""
    data = json.dumps(body, separators=(",", ":")).encode()
    header = HEADER.pack(MAGIC, kind, len(data), len(blob))
    sock.settimeout(timeout_s)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([header], rights)
        sock.sendall(data)
        if blob:
            sock.sendall(blob)
    except TimeoutError as error:
        raise Silent(f"not read within {timeout_s} s") from error
    except OSError as error:
        raise PeerEnded(str(error)) from error


def receive(
    sock: socket.socket, *, deadline: float | None = None, max_blob_bytes: int = 0
) -> Received:
    """One message before `deadline` (monotonic; None waits for ever).

    Raises:
        MessageError: another format, or too long.
        PeerEnded: the other end is closed.
        Silent: not complete in time.
    """
    fds: list[int] = []
    try:
        head = _read(sock, HEADER.size, deadline, fds)
        magic, kind, num_body, num_blob = HEADER.unpack(head)
        if magic != MAGIC or num_body > MAX_BODY_BYTES or num_blob > max_blob_bytes:
            raise MessageError(f"bad header: {magic!r}, {num_body} and {num_blob} bytes")
        body = _parse(_read(sock, num_body, deadline, fds))
        blob = bytes(_read(sock, num_blob, deadline, fds))
        if kind not in {int(one) for one in Message}:
            raise MessageError(f"no message of kind {kind}")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return Received(kind=Message(kind), body=body, blob=blob, fds=tuple(fds))


def _parse(data: bytearray) -> dict[str, Any]:
    try:
        body = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the body is no JSON: {type(error).__name__}") from error
    if not isinstance(body, dict):
        raise MessageError("the body is no object")
    return body  # pyright: ignore[reportUnknownVariableType]


def _read(sock: socket.socket, size: int, deadline: float | None, fds: list[int]) -> bytearray:
    parts = bytearray()
    space = socket.CMSG_SPACE(4 * MAX_FDS)
    while len(parts) < size:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise Silent("silent past the deadline")
        sock.settimeout(left_s)
        try:
            want = min(size - len(parts), CHUNK_BYTES)
            data, ancillary, _, _ = sock.recvmsg(want, space, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError as error:
            raise Silent("silent past the deadline") from error
        except OSError as error:
            raise PeerEnded(str(error)) from error
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(rights[: len(rights) - len(rights) % found.itemsize])
                fds.extend(found)
        if len(fds) > MAX_FDS:
            raise MessageError(f"more than {MAX_FDS} descriptors with one message")
        if not data:
            raise PeerEnded("closed")
        parts += data
    return parts
