"""The exchange of a judge and its children: frames, shared memory, places of tensors, reports of a
harvest's child within bounds."""

import mmap
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.channel import frames, shm
from forge.evalpool.judge.channel.frames import HEADER, MAGIC, Kind
from forge.evalpool.judge.channel.nesting import nesting_of
from forge.evalpool.judge.channel.shm import (
    Data,
    LayoutError,
    TensorSpec,
    returned_memory,
    shared_memory,
    taken,
)
from forge.evalpool.judge.harvest.asking import ask_harvester

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def receive(sock: socket.socket, *, within_s: float = 1.0) -> frames.Frame:
    deadline = time.monotonic() + within_s
    return frames.receive(sock, deadline=deadline, expected=(Kind.DONE,))


def test_descriptors_nobody_asked_for_are_closed(pair: Pair) -> None:
    own = os.memfd_create("nobody-asked")
    try:
        frames.send(pair[0], Kind.DONE, {}, fds=(own, own))
        receive(pair[1])
        links = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
        assert sum("nobody-asked" in one for one in links) == 1
    finally:
        os.close(own)


def send_in_parts(sock: socket.socket, body: bytes) -> None:
    """A frame byte by byte, three descriptors with each."""
    sock.sendall(HEADER.pack(MAGIC, Kind.DONE, len(body)))
    for byte in body:
        socket.send_fds(sock, [bytes([byte])], [0, 0, 0])


def test_a_frame_in_many_parts_fills_no_table_of_descriptors(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found, parse = len(os.listdir("/proc/self/fd")), [], frames._parse

    def counting(data: bytes) -> dict[str, Any]:
        found.append(len(os.listdir("/proc/self/fd")))
        return parse(data)

    monkeypatch.setattr(frames, "_parse", counting)
    send_in_parts(pair[0], b"{}" + b" " * 48)
    receive(pair[1])
    assert found == [before]


def test_more_descriptors_than_a_frame_may_have_are_refused_and_closed(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    send_in_parts(pair[0], b"{}" + b" " * 48)
    deadline = time.monotonic() + 1
    with pytest.raises(frames.FrameError, match="descriptors"):
        frames.receive(pair[1], deadline=deadline, expected=(Kind.DONE,), takes_fds=True)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 64,
        HEADER.pack(MAGIC, Kind.DONE, frames.MAX_BODY_BYTES + 1),
        HEADER.pack(MAGIC, Kind.SPAWN, 2) + b"{}",
        HEADER.pack(MAGIC, Kind.DONE, 2) + b"[]",
        HEADER.pack(MAGIC, Kind.DONE, 2) + b"{x",
        HEADER.pack(MAGIC, Kind.DONE, 100_000) + b"[" * 100_000,
    ],
)
def test_a_broken_frame_is_an_error_not_a_wait(pair: Pair, data: bytes) -> None:
    pair[0].sendall(data)
    with pytest.raises(frames.FrameError):
        receive(pair[1])


def test_a_silent_peer_costs_the_deadline_only(pair: Pair) -> None:
    pair[0].sendall(HEADER.pack(MAGIC, Kind.DONE, 10))
    with pytest.raises(frames.DeadlinePassed):
        receive(pair[1], within_s=0.05)


def test_a_gone_peer_is_told_apart(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(frames.PeerGone):
        receive(pair[1])


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_judge_raise_anything_else(data: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data)
        left.shutdown(socket.SHUT_WR)
        with pytest.raises((frames.FrameError, frames.PeerGone)):
            receive(right)


def test_shared_memory_cannot_be_resized() -> None:
    with shared_memory(100) as (fd, _), pytest.raises(PermissionError):
        os.ftruncate(fd, 10)


@pytest.mark.parametrize(
    "data",
    [["object", [1]], ["float32", [-1]], ["float32", "x"], ["float32", [True]], [[], []], None],
)
def test_a_bad_layout_is_refused(data: object) -> None:
    with pytest.raises(LayoutError):
        TensorSpec.parse(data)


SIZE = 1 << 16


@pytest.fixture(params=[SIZE, SIZE + 1], ids=["sealed", "copied"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "LARGE_BYTES", request.param)


def filled(*, is_left_mapped: bool = False) -> tuple[Data, int, mmap.mmap | None]:
    """The content of memory that a child filled, as the judge takes it, the child's descriptor and
    its mapping."""
    with returned_memory(2 * SIZE) as fd:
        theirs = os.dup(fd)
        mapped = mmap.mmap(theirs, SIZE)
        mapped[:] = b"\1" * SIZE
        if not is_left_mapped:
            mapped.close()
        return taken(fd, SIZE), theirs, mapped if is_left_mapped else None


@pytest.mark.usefixtures("threshold")
def test_what_is_taken_stays_whatever_the_child_writes_later() -> None:
    found, theirs, mapped = filled(is_left_mapped=True)
    mapped[:] = b"\2" * SIZE
    os.pwrite(theirs, b"\3" * SIZE, 0)
    mapped.close()
    os.close(theirs)
    assert bytes(found) == b"\1" * SIZE


def test_sealed_memory_cannot_be_written_or_mapped_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shm, "LARGE_BYTES", SIZE)
    found, theirs, _ = filled()
    with pytest.raises(PermissionError):
        os.pwrite(theirs, b"\3", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(theirs, SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(theirs, 0)
    os.close(theirs)
    assert bytes(found) == b"\1" * SIZE
    assert memoryview(found).readonly


def test_a_candidate_cannot_seal_its_memory() -> None:
    with shared_memory(SIZE) as (fd, _), pytest.raises(PermissionError):
        shm.fcntl.fcntl(fd, shm.F_ADD_SEALS, shm.SEAL_WRITES)


@pytest.mark.parametrize(
    ("result", "nesting"),
    [
        (1, ""),
        (None, ""),
        ((), ""),
        ([1, 2], ""),
        ((1, (2, 3)), "(.(..))"),
        ((1, None), "(.-)"),
        ([None, (1,)], "(-(.))"),
        ({"a": 1, "b": [2]}, "(.(.))"),
    ],
)
def test_a_nesting_says_where_each_tensor_is(result: Any, nesting: str) -> None:
    assert nesting_of(result) == nesting


SIZES = {"step": "sizes", "source": "a", "alternatives": ["b"],
         "groups": [{"text": "a", "other": "b", "large": ["c"]}]}  # fmt: skip
RAN = {"text": 1, "tensors": 1, "outputs": 1, "operations": 3, "cpu_s": 0.1}
ANSWER = {"step": "answer", "source": "a"}
MADE = {"is_answered": True, "code": "x", "policy": "own", "kernels": ["k"], "products": 0}


class Spawner:
    """Children that do nothing."""

    def spawn(self, **_: Any) -> Any:
        return type("Child", (), {"sock": None})

    def end(self, child: Any) -> None:
        """Nothing runs."""


@pytest.mark.parametrize(
    ("request_", "body", "is_done"),
    [
        (SIZES, {**RAN, "group": 0, "large": 0}, True),
        (SIZES, RAN, True),
        (SIZES, {}, False),
        (SIZES, {**RAN, "text": 2}, False),
        (SIZES, {**RAN, "text": "0"}, False),
        (SIZES, {**RAN, "group": -1}, False),
        (SIZES, {**RAN, "group": 0, "large": 1}, False),
        (ANSWER, MADE, True),
        (ANSWER, {"is_answered": False, "reason": "random", "detail": ""}, True),
        (ANSWER, {**MADE, "code": "\ud800"}, False),
        (ANSWER, {**MADE, "kernels": 3}, False),
        (ANSWER, {"is_answered": False, "reason": 3, "detail": ""}, False),
    ],
)
def test_a_result_that_the_child_does_not_make_is_a_crash(
    request_: dict[str, Any], body: Any, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = type("Frame", (), {"kind": Kind.DONE, "body": body})
    monkeypatch.setattr(frames, "send", lambda *_: None)
    monkeypatch.setattr(frames, "receive", lambda *_, **__: frame)
    spawner: Any = Spawner()
    answer = ask_harvester(spawner, request_, limit_s=1.0)
    assert answer.get("failed") == (None if is_done else "crash")


@pytest.mark.parametrize(
    ("kind", "message", "failed", "detail"),
    [
        ("Unjudgeable", "the reference returns a dict; tensors are judged",
         "the reference returns a dict", "tensors are judged"),
        ("RuntimeError", "It looks like there is no internet connection and the repo could not",
         "asks the network", "no internet connection"),
        ("URLError", "urlopen error", "asks the network", "urlopen error"),
        ("RuntimeError", "sizes 3, 4", "raises RuntimeError", "sizes 3, 4"),
    ],
)  # fmt: skip
def test_an_error_of_a_problems_code_has_a_reason_and_the_rest_as_its_detail(
    kind: str, message: str, failed: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = type("Frame", (), {"kind": Kind.FAILED, "body": {"type": kind, "message": message}})
    monkeypatch.setattr(frames, "send", lambda *_: None)
    monkeypatch.setattr(frames, "receive", lambda *_, **__: frame)
    spawner: Any = Spawner()
    answer = ask_harvester(spawner, ANSWER, limit_s=1.0)
    assert answer["failed"] == failed
    assert detail in answer["detail"]
