"""Answers of other servers to `forge.client`: in pieces, unusual, cut short or no HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from forge.client import Judge, Unavailable
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BODY = b'{"problems": ["a", "b"]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\n" + BODY[:5] + b"\r\n%x\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\n\r\n"
)
LONG = b'{"problems": ["%b"]}' % (b"x" * 300_000)
USUAL = {
    "in parts": [PLAIN[:9], PLAIN[9:-9], PLAIN[-9:]],
    "in chunks": [CHUNKED[:20], CHUNKED[20:]],
    "long": [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LONG), LONG],
}
"""Answers whose connection serves the next request, too."""
LAST = {
    "up to the end": [b"HTTP/1.1 200 OK\r\n\r\n" + BODY],
    "Connection: close": [PLAIN.replace(LENGTH, LENGTH + b"Connection: close\r\n")],
}
BROKEN = {
    "nothing": ([], "RemoteDisconnected"),
    "no HTTP": ([b"\x00" * 40 + b"\r\n\r\n"], "BadStatusLine"),
    "half of a body": ([PLAIN[:-3]], "IncompleteRead"),
    "endless head": ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10)], "LineTooLong"),
    "no object": ([PLAIN.replace(BODY, b"[" + b" " * (len(BODY) - 2) + b"]")], "found list"),
}
"""Answers that are none, and the message about each."""


@contextmanager
def answering(path: Path, *answers: Sequence[bytes], is_last: bool = False) -> Iterator[list[int]]:
    """A server that gives these answers in turn, and the connection of each request. Connections
    end with their answer if `is_last`, else with the answers."""
    asked: list[int] = []
    left = list(answers)

    def serve(listener: socket.socket) -> None:
        number = 0
        while left:
            connection, _ = listener.accept()
            number += 1
            with connection:
                while left and connection.recv(1 << 16):
                    asked.append(number)
                    for part in left.pop(0):
                        connection.sendall(part)
                        time.sleep(0.005)
                    if is_last:
                        break

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        yield asked
        server.join(10)


@pytest.mark.parametrize("kind", USUAL)
def test_an_answer_is_read_and_its_connection_used_again(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with answering(path, USUAL[kind], [PLAIN]) as asked, Judge(f"unix:{path}") as judge:
        assert judge.problems() == json.loads(LONG if kind == "long" else BODY)["problems"]
        assert judge.problems() == ["a", "b"]
    assert asked == [1, 1]


@pytest.mark.parametrize("kind", LAST)
def test_after_the_last_answer_of_a_connection_another_is_opened(kind: str, tmp_path: Path) -> None:
    path, answer = tmp_path / "x.sock", LAST[kind]
    with answering(path, answer, answer, is_last=True) as asked, Judge(f"unix:{path}") as judge:
        assert judge.problems() == ["a", "b"]
        assert judge.problems() == ["a", "b"]
    assert asked == [1, 2]


@pytest.mark.parametrize("kind", BROKEN)
def test_an_answer_that_is_none_is_unavailable(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    parts, message = BROKEN[kind]
    judge = Judge(f"unix:{path}", patience_s=0.1)
    with (
        answering(path, parts, is_last=True),
        judge,
        pytest.raises(Unavailable, match=message),
    ):
        judge.problems()


def test_a_broken_connection_is_not_used_again(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with (
        answering(path, [PLAIN[:-3]], [PLAIN], is_last=True) as asked,
        Judge(f"unix:{path}", patience_s=5.0) as judge,
    ):
        assert judge.problems() == ["a", "b"]
    assert asked == [1, 2]


def test_a_url_or_token_that_http_cannot_send_is_refused_without_showing_the_token() -> None:
    for url in ("http://h:x", "http://a b", "http://[x"):
        with pytest.raises(ConfigError, match="url: found 'http"):
            Judge(url)
    for token in ("abc\nd", "abc\u20ac"):
        with pytest.raises(ConfigError) as caught:
            Judge("http://h", token)
        assert str(caught.value) == "token: found a character that no header may have"
