"""`forge judge DIR --serve` with real judges and 64 clients, half of which hang up."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge.adapters.http import routes
from forge.adapters.settings import JudgeSettings
from forge.client import Judge
from forge.errors import ConfigError
from forge.evalpool.served import PoolApp
from tests.adapters.kernels import ANSWER, CHEAT, PROBLEM, numbered
from tests.adapters.served import TextPool
from tests.listening import listening

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench" / "level1" / "19_ReLU.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROBLEM)
    return tmp_path / "bench"


def test_serving_adds_the_public_routes_with_the_problems_of_the_directory(
    bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(routes, "serve_pool", lambda table, **more: given.update(more, table=table))
    settings = JudgeSettings(device="cpu", policy="hybrid", workers=1)
    where: dict[str, Any] = {"format": "kernelbench", "socket": None, "listen": "127.0.0.1:0"}
    routes.serve(settings, problems=bench, candidate=None, **where)
    assert given["table"].policy == "hybrid"
    pool = TextPool()
    paths = {route.path for route in given["more"](pool, PoolApp(pool))}
    assert {"/v1/judge", "/v1/judge/batch", "/v1/problems", "/v1/health", "/openapi.json"} <= paths
    with pytest.raises(ConfigError, match="--serve takes no CANDIDATE"):
        routes.serve(settings, problems=bench, candidate="c.py", **where)
    with pytest.raises(ConfigError, match="problems: nowhere: no such directory or file"):
        routes.serve(settings, problems=Path("nowhere"), candidate=None, **where)


@pytest.fixture
def url(bench: Path) -> Iterator[str]:
    argv = ("judge", str(bench), "--serve", "--device", "cpu", "--listen", "127.0.0.1:0")
    with listening(*argv) as (url, _):
        yield url


@pytest.mark.long
def test_of_64_clients_half_hang_up_and_real_verdicts_are_neither_lost_nor_mixed(url: str) -> None:
    found: dict[int, list[tuple[str, str]]] = {}
    expected = {client: [numbered(client * 2 + one) for one in range(2)] for client in range(32)}

    def stay(client: int) -> None:
        with Judge(url, patience_s=100.0) as judge:
            pairs = [(PROBLEM, answer) for answer, _ in expected[client]]
            verdicts = judge.judge_many(pairs, concurrency=2)
            found[client] = [(one.code, one.status) for one in verdicts]

    def hang_up(client: int) -> None:
        body = json.dumps({"problem": "19_ReLU", "answer": numbered(1000 + client)[0]}).encode()
        head = (
            "POST /v1/judge HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        host, _, port = url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as stream:
            stream.sendall((head + body)[: len(head) + len(body) * (client % 4 + 1) // 4])

    with Judge(url) as judge:
        assert judge.problems() == ["level1/19_ReLU"]
        assert judge.judge("level=1 problem_id=19", ANSWER).correct
        threads = [threading.Thread(target=stay, args=(client,)) for client in range(32)]
        threads += [threading.Thread(target=hang_up, args=(client,)) for client in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert judge.judge("19_ReLU", CHEAT).reason == "torch_work"
        assert judge.health()["ok"]
    assert found == expected
