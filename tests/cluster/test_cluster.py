"""Judges of a cluster in a pool, and the kernels that they keep."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from forge.cluster.cluster import MAX_LOST, Cluster, HostLost
from forge.cluster.roles import open_ranks
from forge.config.schema import ClusterTable, ModelTable, SftStage
from forge.errors import MachineError, NoRoom
from forge.train.handle import TrainerJob

UP = {"url": "", "host": "node", "devices": "cpu", "pid": 1}
LOST = {"kind": "HostLost", "error": "its host is gone: the node was terminated"}
FULL = {"kind": "NoRoom", "error": "trainer-2: no node has room"}


class Answers:
    """A broker: its answers to /open by the name of the child, the last one again and again."""

    def __init__(self) -> None:
        self.opens: dict[str, list[dict[str, Any]]] = {}
        self.orders: list[dict[str, Any]] = []
        self.stopped: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        match request.url.path:
            case "/open":
                self.orders.append(body["order"])
                answers = self.opens[body["order"]["name"]]
                return httpx.Response(200, json=answers.pop(0) if answers[1:] else answers[0])
            case "/stop":
                self.stopped.append(body["id"])
            case "/address":
                return httpx.Response(200, json={"ip": "127.0.0.1"})
            case "/news":
                await anyio.sleep_forever()
        return httpx.Response(200, json={})


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def cluster(answers: Answers, tmp_path: Path) -> AsyncIterator[Cluster]:
    transport = httpx.MockTransport(answers)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://broker") as http,
        anyio.create_task_group() as tasks,
    ):
        yield Cluster(http, tasks, run="r", log_dir=tmp_path, say=lambda _: None)
        tasks.cancel_scope.cancel()


def judge(cluster: Cluster) -> Any:
    return cluster.host(
        "judge-0", role="judge", index=0, settings={}, num_gpus=0, num_cpus=1, labels={},
        ready_s=1.0,
    )  # fmt: skip


async def test_a_host_that_is_lost_while_it_starts_is_opened_again(cluster, answers):
    answers.opens["judge-0"] = [LOST, LOST, UP]
    async with judge(cluster) as hosted:
        assert hosted.host == "node"
        assert answers.stopped == ["judge-0.0"] * 2, "what is left of each is ended first"


async def test_hosts_that_are_always_lost_are_an_error(cluster, answers):
    answers.opens["judge-0"] = [LOST]
    with pytest.raises(HostLost, match="the node was terminated"):
        async with judge(cluster):
            pass
    assert len(answers.orders) == MAX_LOST + 1


def job(**changes: Any) -> TrainerJob:
    paths = ("model_dir", "work_dir", "weights_dir", "control_socket", "log_dir")
    stage = SftStage(kind="sft", steps=1, learning_rate=1e-3, batch_size=6)
    settings: dict[str, Any] = {
        "stage": stage.model_copy(update=changes), "model": ModelTable(path="m"), "seed": 0,
    }  # fmt: skip
    return TrainerJob(**settings, **dict.fromkeys(paths, Path("x")))


async def ranks_of(cluster: Cluster, job: TrainerJob, say: Callable[[str], None]) -> list[int]:
    """World size, then the first rank of each node."""
    table = ClusterTable(address="auto", train_nodes=2)
    async with open_ranks(cluster, table, job, say=say) as ranks:
        return [ranks.job.ranks, *(int(each.name[8:]) for each in ranks.hosted)]


async def test_a_first_trainer_needs_all_nodes_and_a_later_one_those_with_room(cluster, answers):
    said: list[str] = []
    answers.opens = {"trainer-1": [UP], "trainer-2": [FULL]}
    with pytest.raises(NoRoom, match="trainer-2: no node has room"):
        await ranks_of(cluster, job(), said.append)
    answers.opens["trainer-2"] = [UP, FULL]
    assert sorted(await ranks_of(cluster, job(), said.append)) == [1, 2, 3]
    meetings = [each["settings"]["job"]["meeting"] for each in answers.orders[-2:]]
    assert {each["first"] for each in meetings} == {1, 2}
    assert len({each["port"] for each in meetings}) == 1
    assert await ranks_of(cluster, job(), said.append) == [2, 1]
    assert said == ["trainer-2: no node has room; the trainer continues on 1 of 2 nodes"]


async def test_fewer_nodes_than_can_share_a_batch_are_left_out(cluster, answers):
    said: list[str] = []
    answers.opens = {"trainer-1": [UP], "trainer-2": [UP, FULL]}
    await ranks_of(cluster, job(batch_size=3), said.append)
    assert await ranks_of(cluster, job(batch_size=3), said.append) == [1]
    assert "continues on 0 of 2 nodes" in said[0]


async def test_shards_are_not_continued_on_one_card(cluster, answers):
    sharded = replace(job(parallel="fsdp2"), gpus=("GPU-1",))
    answers.opens = {"trainer-1": [UP, FULL], "trainer-2": [UP, FULL]}
    await ranks_of(cluster, sharded, lambda _: None)
    with pytest.raises(MachineError, match="the checkpoint of its shards needs two ranks"):
        await ranks_of(cluster, sharded, lambda _: None)
