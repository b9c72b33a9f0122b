"""Messages of the executor: what is sent arrives; a peer that breaks the format is found out."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from forge.evalpool.judge.execute import messages
from forge.evalpool.judge.execute.messages import (
    HEADER,
    MAGIC,
    MAX_BODY_BYTES,
    Message,
    MessageError,
    PeerEnded,
    Silent,
    receive,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def soon(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


def test_body_blob_and_descriptor_arrive(pair: Pair) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    send(pair[0], Message.LOAD, {"a": [1, None]}, blob=b"x" * 1000, fds=(fd,))
    found = receive(pair[1], deadline=soon(), max_blob_bytes=1000)
    assert (found.kind, found.body, found.blob) == (Message.LOAD, {"a": [1, None]}, b"x" * 1000)
    (received,) = found.fds
    assert os.fstat(received).st_rdev == os.fstat(fd).st_rdev
    os.close(received)
    os.close(fd)


def test_more_descriptors_than_a_message_may_have_are_refused(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pair[0].sendall(HEADER.pack(MAGIC, 1, 20, 0))
    for _ in range(20):
        socket.send_fds(pair[0], [b" "], [0, 0])
    with pytest.raises(MessageError, match="descriptors"):
        receive(pair[1], deadline=soon())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(b"NOPE", 1, 2, 0) + b"{}",
        HEADER.pack(MAGIC, 99, 2, 0) + b"{}",
        HEADER.pack(MAGIC, 1, MAX_BODY_BYTES + 1, 0),
        HEADER.pack(MAGIC, 1, 2, 1) + b"{}x",
        HEADER.pack(MAGIC, 1, 2, 0) + b"[]",
        HEADER.pack(MAGIC, 1, 2, 0) + b"{x",
        HEADER.pack(MAGIC, 1, 90_000, 0) + b"[" * 90_000,
    ],
)
def test_another_format_is_refused(pair: Pair, data: bytes) -> None:
    pair[0].sendall(data)
    with pytest.raises(MessageError):
        receive(pair[1], deadline=soon())


def test_a_refused_message_leaves_no_descriptor_open(pair: Pair) -> None:
    before = set(os.listdir("/proc/self/fd"))
    fd = os.open("/dev/null", os.O_RDONLY)
    send(pair[0], Message.LOAD, {}, blob=b"x", fds=(fd,))
    os.close(fd)
    with pytest.raises(MessageError):
        receive(pair[1], deadline=soon(), max_blob_bytes=0)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_silent_peer_costs_no_more_than_the_deadline(pair: Pair) -> None:
    pair[0].sendall(MAGIC)
    began = time.monotonic()
    with pytest.raises(Silent):
        receive(pair[1], deadline=soon(0.05))
    assert time.monotonic() - began < 2


def test_a_peer_that_ended_is_told_from_a_silent_one(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(PeerEnded):
        receive(pair[1], deadline=soon())
    with pytest.raises(PeerEnded):
        messages.send(pair[1], Message.RUN, {}, blob=b"x" * 1000)
