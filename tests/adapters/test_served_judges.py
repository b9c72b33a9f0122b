"""`forge judge DIR --serve`: the routes that it serves."""

from pathlib import Path
from typing import Any

import pytest

from forge.adapters.http import routes
from forge.adapters.settings import JudgeSettings
from forge.errors import ConfigError
from forge.evalpool.served import PoolApp
from tests.adapters.kernels import PROBLEM
from tests.adapters.served import TextPool


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench" / "level1" / "19_ReLU.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROBLEM)
    return tmp_path / "bench"


def test_serving_adds_the_public_routes_with_the_problems_of_the_directory(bench, monkeypatch):
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
