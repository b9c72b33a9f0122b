"""`forge.client.Judge`: order, retries, errors."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
