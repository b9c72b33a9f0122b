"""The broker of a cluster and its hosts, with a Ray of this process."""

import base64
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from forge.cluster import broker as broker_module
from forge.cluster import host as host_module
from forge.cluster.broker import Broker
from forge.cluster.host import Host, Order, Place
from forge.origin import source_digest
from forge.process.ask import open_url_client, send
from forge.process.child import ChildSpec
from forge.process.environment import child_env
from tests.cluster.fake_ray import FakeActorDiedError, FakeRay, FakeUnavailableError

CHILD = """
import sys
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from forge.process.lease import hold_lease
from forge.process.server.serving import serve

config = hold_lease()
print("the child's log", flush=True)
if config["fails"]:
    sys.exit("no luck")

async def health(request):
    return JSONResponse({"weights": config["weights"]})

serve(Starlette(routes=[Route("/health", health)]), Path(config["socket_path"]),
      network=config["network"])
"""
LOWERED = """
import os
from pathlib import Path
os.nice(7)
Path("/proc/self/oom_score_adj").write_text("1000")
from forge.process.lease import take_parents_priority
print(take_parents_priority(), Path("/proc/self/oom_score_adj").read_text())
"""
SYS_NICE = 23
"""Capability to raise a priority. An OOM score that was raised may be lowered without one."""


def small_child(order: Order, place: Place) -> ChildSpec:
    socket_path = place.folder / "child.sock"
    weights = order.files.get("model_dir")
    config = {
        "socket_path": str(socket_path), "fails": order.settings.get("fails", False),
        "weights": weights and Path(weights, "model.bin").read_text(),
        "network": {"host": place.ip, "token": order.token},
    }  # fmt: skip
    return ChildSpec(
        name=order.name, argv=(sys.executable, "-c", CHILD), log_path=place.folder / "child.log",
        env=child_env(threads=1), socket_path=socket_path, config=config,
    )  # fmt: skip


@pytest.fixture
async def ray(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeRay]:
    monkeypatch.setattr(host_module, "child_of", small_child)
    monkeypatch.setattr(broker_module, "UNAVAILABLE_PAUSE_S", 0.01)
    async with anyio.create_task_group() as tasks:
        made = FakeRay(lambda: Host("127.0.0.1", 1), tasks)
        yield made
        await made.stop_all()
        tasks.cancel_scope.cancel()


def request(key: str, *, weights: Path | None = None, **settings: Any) -> dict[str, Any]:
    order = Order(
        run="r", name=key, role="judge", index=0, token="t", sources=source_digest(),
        num_gpus=0, settings=settings, files={"model_dir": str(weights)} if weights else {},
    )  # fmt: skip
    return {
        "id": key, "order": order.to_json(), "num_cpus": 1, "labels": {"role": "judge"},
        "room_s": 0.3,
    }  # fmt: skip


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def health_of(opened: Mapping[str, Any]) -> dict[str, Any]:
    async with open_url_client(opened["url"], timeout_s=5, token="t") as client:
        return (await send(client, "GET", "/health", server="it", timeout_s=5)).json()


async def test_a_child_runs_on_a_node_with_its_label_and_ends_at_stop(ray):
    ray.add("other", cpus=4, role="serve")
    node = ray.add("node", cpus=1, role="judge")
    broker = Broker(ray)
    opened = await broker.open(request("judge-0"))
    assert await health_of(opened) == {"weights": None}
    assert [actor.node for actor in node.actors] == [node]
    news = await broker.news({"id": "judge-0", "offset": 0})
    assert base64.b64decode(news["log"]) == b"the child's log\n"
    assert news["ended"] is None
    await broker.stop({"id": "judge-0"})
    assert node.actors[0].is_killed
    assert not is_alive(opened["pid"])


async def test_a_child_without_room_names_its_needs_and_all_nodes(ray):
    ray.add("node", cpus=1, role="judge")
    broker = Broker(ray)
    await broker.open(request("judge-0"))
    found = await broker.open(request("judge-1"))
    assert found["kind"] == "NoRoom"
    assert "judge-1: no node has room within 0.3 s (needs 1 CPU, role=judge)" in found["error"]
    assert "127.0.0.1 (1 CPU, 0 GPU, role=judge)" in found["error"]
    await broker.stop({"id": "judge-0"})
    assert "url" in await broker.open(request("judge-1"))


async def test_a_lost_node_ends_its_children_and_an_outage_does_not(ray):
    node = ray.add("node", cpus=1, role="judge")
    broker = Broker(ray)
    await broker.open(request("judge-0"))
    ray.unavailable = [FakeUnavailableError("socket closed")] * 3
    news = await broker.news({"id": "judge-0", "offset": 0})
    assert news["ended"] is None
    assert ray.unavailable == []
    node.is_alive = False
    with pytest.raises(FakeActorDiedError):
        await broker.news({"id": "judge-0", "offset": 16})


async def test_a_child_that_dies_is_reported_with_its_reason(ray):
    ray.add("node", cpus=1, role="judge")
    broker = Broker(ray)
    opened = await broker.open(request("judge-0"))
    os.kill(opened["pid"], signal.SIGKILL)
    with anyio.fail_after(5):
        while not (news := await broker.news({"id": "judge-0", "offset": 16}))["ended"]:
            pass
    assert "killed by signal 9" in news["ended"]


async def test_a_child_that_does_not_start_is_an_error_with_its_log(ray):
    node = ray.add("node", cpus=1, role="judge")
    found = await Broker(ray).open(request("judge-0", fails=True))
    assert found["kind"] == "ChildDied"
    assert "no luck" in found["error"]
    assert node.actors[0].is_killed


async def test_a_node_with_other_sources_is_refused(ray):
    ray.add("node", cpus=1, role="judge")
    body = request("judge-0")
    body["order"]["sources"] = "0" * 12
    found = await Broker(ray).open(body)
    assert found["kind"] == "MachineError"
    assert "node 127.0.0.1 has other sources of forge" in found["error"]


async def test_weights_are_put_once_and_brought_to_each_engine(ray, tmp_path):
    ray.add("node", cpus=2, role="judge")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.bin").write_text(name)
    broker = Broker(ray)
    for engine in ("serve-0", "serve-1"):
        opened = await broker.open(request(engine, weights=tmp_path / "first"))
        assert await health_of(opened) == {"weights": "first"}
    assert ray.num_put == 1
    brought = await broker.bring({"id": "serve-1", "path": str(tmp_path / "second")})
    assert (Path(brought["path"]) / "model.bin").read_text() == "second"


async def test_the_survey_reports_every_node(ray):
    ray.add("node", cpus=1, role="judge")
    needs = {"packages": ["httpx", "no-such-package"], "paths": ["/", "/no/such/path"]}
    found = (await Broker(ray).survey(needs))["nodes"]
    assert [each["node"]["is_here"] for each in found] == [True, False]
    facts = found[1]
    assert facts["sources"] == source_digest()
    assert facts["is_reachable"]
    assert facts["versions"] == {"httpx": httpx.__version__}
    assert facts["missing"] == ["/no/such/path"]
    assert abs(facts["skew_s"]) < 1
    assert facts["megabytes_s"] > 0


def may_raise_priority() -> bool:
    found = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return bool(int(found[1], 16) >> SYS_NICE & 1)


def test_a_host_takes_the_priority_and_the_oom_score_of_what_started_it():
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    score = int(Path("/proc/self/oom_score_adj").read_text())
    done = subprocess.run(
        [sys.executable, "-c", LOWERED], capture_output=True, text=True, check=True
    )
    lowered = min(nice + 7, 19)
    expected = [nice if may_raise_priority() else lowered, score]
    assert [int(word) for word in done.stdout.split()] == expected
