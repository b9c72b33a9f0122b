"""`forge.client.Judge`: order, retries, errors, answers that are cut short or no HTTP."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from forge.client import MAX_BODY_BYTES, Judge, Unavailable
from forge.errors import ConfigError
from tests.adapters.kernels import PROBLEM
from tests.adapters.served import TextPool, code, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses of this thread, which take no time; those of servers' threads do."""
    found, sleep = list[float](), time.sleep
    own = threading.get_ident()

    def pause(seconds: float) -> None:
        (found.append if threading.get_ident() == own else sleep)(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    return found


@pytest.fixture
def pool() -> TextPool:
    return TextPool()


@pytest.fixture
def url(pool: TextPool, tmp_path: Path) -> Iterator[str]:
    with serving(pool, tmp_path / "x.sock", token="secret") as url:
        yield url


def test_a_client_gets_verdicts_rewards_and_health(url, tmp_path):
    (tmp_path / "p.py").write_text(PROBLEM)
    with Judge(url, token="secret") as judge:
        assert judge.judge(PROBLEM, code("wrong")).status == "wrong"
        assert judge.judge(tmp_path / "p.py", code("a")).correct
        scored = judge.score(PROBLEM, code("timed"), weights={"correct": 1.0})
        assert scored.verdict.speedup == 2.0
        assert scored.reward.terms["correct"] == 1.0
        assert judge.health()["ok"]
        assert judge.problems() == []


def test_verdicts_come_in_the_order_of_the_pairs(url, pool):
    pool.delay_s = 0.01
    names = [f"{'wrong' if number % 3 else 'right'} {number}" for number in range(40)]
    with Judge(url, token="secret") as judge:
        verdicts = list(judge.judge_many((PROBLEM, code(name)) for name in names))
    assert [one.code for one in verdicts] == [code(name) for name in names]
    assert [one.status for one in verdicts] == [
        "wrong" if name.startswith("wrong") else "correct" for name in names
    ]


def test_a_fault_is_asked_again_until_there_is_a_verdict(url, pauses):
    with Judge(url, token="secret") as judge:
        assert judge.judge(PROBLEM, code("fault once")).correct
    assert pauses == [5.0]


def test_a_lasting_fault_is_unavailable_and_never_a_verdict(url, pool):
    with Judge(url, token="secret", patience_s=1.0) as judge:
        with pytest.raises(Unavailable, match="no answer within 1 s; the last: infra_error: judge"):
            judge.judge(PROBLEM, code("fault"))
        with pytest.raises(Unavailable):
            list(judge.judge_many([(PROBLEM, code("a")), (PROBLEM, code("fault"))]))


def test_a_full_server_is_asked_again(tmp_path):
    pool = TextPool(delay_s=0.2)
    found: list[str] = []
    with serving(pool, tmp_path / "x.sock", max_in_flight=1) as url:

        def ask(name: str) -> None:
            with Judge(url) as judge:
                found.append(judge.judge(PROBLEM, code(name)).code)

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [code(name) for name in "abc"]


def test_after_a_restart_of_the_server_one_attempt_fails_however_many_connections_were_open(
    tmp_path, pauses
):
    path = tmp_path / "x.sock"
    with Judge(f"unix:{path}") as judge:
        with serving(TextPool(delay_s=0.2), path):
            pairs = [(PROBLEM, code(f"{number}")) for number in range(8)]
            assert len(list(judge.judge_many(pairs, concurrency=8))) == 8
        pauses.clear()
        with serving(TextPool(), path):
            assert judge.health()["ok"]
    assert len(pauses) == 1


def test_a_server_that_is_not_there_is_unavailable(tmp_path):
    with (
        Judge(f"unix:{tmp_path}/none.sock", patience_s=0.5) as judge,
        pytest.raises(Unavailable, match="FileNotFoundError"),
    ):
        judge.health()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with (
            Judge(f"http://127.0.0.1:{port}", patience_s=0.5) as judge,
            pytest.raises(Unavailable, match="timed out"),
        ):
            judge.health()


def test_a_server_that_dies_while_a_client_waits_is_gone_long_before_its_patience_ends(monkeypatch):
    monkeypatch.setattr("forge.client.GONE_S", 0.3)
    server = socket.create_server(("127.0.0.1", 0))

    def die() -> None:
        with server:
            server.accept()[0].close()

    with Judge(f"http://127.0.0.1:{server.getsockname()[1]}") as judge:
        dying = threading.Thread(target=die)
        dying.start()
        with pytest.raises(Unavailable, match=r"gone for 0\.3 s; the last: ConnectionRefused"):
            judge.judge(PROBLEM, code("a"))
        dying.join()


def test_a_refused_request_is_one_line_at_once(url, tmp_path):
    with Judge(url, token="secret") as judge:
        with pytest.raises(ConfigError, match="HTTP 422: problem: 'nowhere' is no source"):
            judge.judge("nowhere", code("a"))
        with pytest.raises(ConfigError, match="HTTP 422: precision: "):
            judge.judge(PROBLEM, code("a"), precision="fp64")
        with pytest.raises(ConfigError, match=f"{MAX_BODY_BYTES} are allowed"):
            judge.judge(PROBLEM, "x" * MAX_BODY_BYTES)
        with pytest.raises(ConfigError, match=r"none\.py: cannot be read"):
            judge.judge(tmp_path / "none.py", code("a"))
        assert judge.judge(PROBLEM, code("a")).correct
    with Judge(url, token="wrong") as judge, pytest.raises(ConfigError, match="HTTP 401: a bearer"):
        judge.health()
    with pytest.raises(ConfigError, match="url: found 'ftp://x'; http://HOST:PORT or unix:/PATH"):
        Judge("ftp://x")


def test_the_client_needs_the_standard_library_alone():
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import forge.client; print(forge.client.Judge)"],
        capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "Judge" in done.stdout


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
