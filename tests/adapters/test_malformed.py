"""Malformed requests to `/v1/judge`, many of each kind: a 4xx with one line, and the pool lives."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from forge.client import Judge
from forge.process.server import door
from tests.adapters.kernels import PROBLEM
from tests.adapters.served import TextPool, code, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKEN = "secret"
GOOD = json.dumps({"problem": PROBLEM, "answer": code("a"), "reward": True}).encode()
MANY = [6, pytest.param(200, marks=pytest.mark.long)]


def request(body: bytes, *, length: int | None = None, token: str = TOKEN) -> bytes:
    return (
        "POST /v1/judge HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    ).encode() + body


def random_bytes(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randrange(1, 2000)) + b"\r\n\r\n"


def random_body(draw: random.Random) -> bytes:
    return request(draw.randbytes(draw.randrange(0, 2000)))


def broken_json(draw: random.Random) -> bytes:
    """The good body with a byte replaced by a control character, or cut."""
    at = draw.randrange(len(GOOD) - 1)
    return request(draw.choice([GOOD[:at], GOOD[:at] + b"\x01" + GOOD[at + 1 :]]))


def wrong_json(draw: random.Random) -> bytes:
    """JSON that is no request: a key less, a value of another type, a key more."""
    body = json.loads(GOOD)
    name = draw.choice(list(body))
    wrong = [None, 1.5, [], {}, "x" if name == "reward" else True]
    match draw.randrange(3):
        case 0:
            body.pop(draw.choice(["problem", "answer"]))
        case 1:
            body[name] = draw.choice(wrong)
        case _:
            body[f"{name}{draw.randrange(100)}"] = 1
    return request(json.dumps(body).encode())


def large_body(_draw: random.Random) -> bytes:
    return request(b'{"problem": "', length=100 << 20)


def slow_body(_draw: random.Random) -> bytes:
    return request(GOOD[:20], length=len(GOOD))


def wrong_token(draw: random.Random) -> bytes:
    return request(GOOD, token=draw.choice(["", "Secret", "secret2", f"{draw.random()}", "\xff"]))


KINDS: dict[str, tuple[Callable[[random.Random], bytes], set[int]]] = {
    "random bytes": (random_bytes, {0, 400}),
    "random body": (random_body, {422}),
    "broken JSON": (broken_json, {422}),
    "wrong JSON": (wrong_json, {422}),
    "100 MB body": (large_body, {413}),
    "slow body": (slow_body, {408}),
    "wrong token": (wrong_token, {401}),
}
"""Maker of requests of each kind, and the statuses of their answers; 0: closed without one."""


@pytest.fixture
def pool() -> TextPool:
    return TextPool()


@pytest.fixture
def path(pool: TextPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(door, "BODY_TIMEOUT_S", 1.0)
    with serving(pool, tmp_path / "x.sock", token=TOKEN):
        yield tmp_path / "x.sock"


def send(path: Path, content: bytes) -> tuple[int, bytes]:
    """Status and body of the answer."""
    found = b""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(20.0)
        stream.connect(str(path))
        try:
            stream.sendall(content)
            while chunk := stream.recv(1 << 16):
                found += chunk
                head, _, body = found.partition(b"\r\n\r\n")
                if head and body and f"content-length: {len(body)}".encode() in head.lower():
                    break
        except ConnectionError:
            pass
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def test_a_client_that_sends_100_mb_before_it_reads_gets_the_refusal(path: Path) -> None:
    """Python's own client does so, as most do."""
    for token, status in ((TOKEN, 413), ("wrong", 401)):
        connection = http.client.HTTPConnection("x")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection.request("POST", "/v1/judge", body=bytes(100 << 20), headers=headers)
        response = connection.getresponse()
        assert response.status == status
        assert "\n" not in json.loads(response.read())["error"]
        connection.close()
    with Judge(f"unix:{path}", token=TOKEN, patience_s=10.0) as judge:
        assert judge.judge(PROBLEM, code("a")).correct


def test_another_route_or_method_is_one_line(path: Path) -> None:
    for begin, message in (
        ("GET /v1/judge", "GET /v1/judge: method not allowed; GET /openapi.json has all routes"),
        ("GET /v2/judge", "GET /v2/judge: no such route; GET /openapi.json has all routes"),
    ):
        head = f"{begin} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        status, body = send(path, head.encode())
        assert status in (404, 405)
        assert json.loads(body) == {"error": message}


@pytest.mark.parametrize("number", MANY)
@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_request_is_a_4xx_in_one_line_and_the_pool_lives(
    kind: str, number: int, path: Path, pool: TextPool
) -> None:
    make, statuses = KINDS[kind]
    draw = random.Random(kind)
    contents = [make(draw) for _ in range(number)]
    began = time.monotonic()
    with ThreadPoolExecutor(50 if kind == "slow body" else 8) as threads:
        for status, body in threads.map(lambda content: send(path, content), contents):
            assert status in statuses
            if status > 400:
                error = json.loads(body)["error"]
                assert error
                assert "\n" not in error
                assert len(error) < 300
    assert time.monotonic() - began < 40  # a large body is refused before it is sent
    assert pool.asked == []
    with Judge(f"unix:{path}", token=TOKEN, patience_s=10.0) as judge:
        assert judge.judge(PROBLEM, code("a")).correct
