"""Answers of other servers to `forge.client` that are cut short or no HTTP."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from forge.client import Judge, Unavailable
from forge.errors import ConfigError

BODY = b'{"problems": ["a", "b"]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = b"HTTP/1.1 200 OK\r\n" + LENGTH + b"\r\n" + BODY
BROKEN = {
    "nothing": ([], "RemoteDisconnected"),
    "no HTTP": ([b"\x00" * 40 + b"\r\n\r\n"], "BadStatusLine"),
    "half of a body": ([PLAIN[:-3]], "IncompleteRead"),
    "endless head": ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10)], "LineTooLong"),
    "no object": ([PLAIN.replace(BODY, b"[" + b" " * (len(BODY) - 2) + b"]")], "found list"),
}
"""Answers that are none, and the message about each."""


@contextmanager
def answering(path: Path, *answers: Sequence[bytes]) -> Iterator[list[int]]:
    """A server that gives these answers in turn, each on a connection of its own, and the number of
    each connection with a request."""
    asked: list[int] = []

    def serve(listener: socket.socket) -> None:
        for number, answer in enumerate(answers, 1):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                asked.append(number)
                for part in answer:
                    connection.sendall(part)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        yield asked
        server.join(10)


@pytest.mark.parametrize("kind", BROKEN)
def test_an_answer_that_is_none_is_unavailable(kind, tmp_path):
    path = tmp_path / "x.sock"
    parts, message = BROKEN[kind]
    judge = Judge(f"unix:{path}", patience_s=0.1)
    with answering(path, parts), judge, pytest.raises(Unavailable, match=message):
        judge.problems()


def test_a_broken_connection_is_not_used_again(tmp_path):
    path = tmp_path / "x.sock"
    with (
        answering(path, [PLAIN[:-3]], [PLAIN]) as asked,
        Judge(f"unix:{path}", patience_s=5.0) as judge,
    ):
        assert judge.problems() == ["a", "b"]
    assert asked == [1, 2]


def test_a_url_or_token_that_http_cannot_send_is_refused_without_showing_the_token():
    for url in ("http://h:x", "http://a b", "http://[x"):
        with pytest.raises(ConfigError, match="url: found 'http"):
            Judge(url)
    for token in ("abc\nd", "abc\u20ac"):
        with pytest.raises(ConfigError) as caught:
            Judge("http://h", token)
        assert str(caught.value) == "token: found a character that no header may have"
