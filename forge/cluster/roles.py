"""The roles of children on other nodes: judges of a pool, engines of replicas, ranks of a trainer.

Each is opened as at home, by `evalpool.pool`, `serve.replica` and `runner.stages.trainer`. A node
that is lost ends its children. The pool judges their candidates elsewhere and opens the links
again; an engine is started again, with the current weights, and until then the others generate and
publishes go on without it: both on any node with room, also one that has joined since. Rank 0 of a
trainer and its neighbours stay on this machine; a node has the model, the rows and the checkpoint
as copies. A lost rank ends the trainer, which continues from its checkpoint with as many nodes as
have room.

    supervisor ── job ──▶ trainer: ranks 0 ... k-1   (control.sock, checkpoints, published weights)
        └── order ──▶ host on a node: ranks k ... 2k-1, ...      ◀─ gloo, NCCL ─▶
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from forge.cluster.cluster import Cluster, Hosted
from forge.config.schema import ClusterTable, JudgeTable, ServeTable
from forge.errors import ChildDied, MachineError, NoRoom
from forge.evalpool.keeper import READY_TIMEOUT_S, Link
from forge.evalpool.pool import OpenElsewhere, request_timeout_s
from forge.evalpool.wire import NoAnswer, ask_health
from forge.process.ask import open_url_client
from forge.process.child import ChildSpec, describe_exit
from forge.serve.engines import start_timeout_s
from forge.serve.replica import EngineElsewhere, OpenEngineElsewhere, ReplicaClient
from forge.serve.replicas import settings_elsewhere
from forge.train.handle import TrainerJob, files_of, most_others, split_job

MARGIN_S = 10.0
"""Added to a child's own limit, so that its error arrives before the broker counts as silent."""
READY_S = 30.0
"""Maximum time until a host has started its ranks, which import torch later."""
SUCCESS = describe_exit(0)


def judges_elsewhere(
    cluster: Cluster, table: ClusterTable, judge: JudgeTable
) -> list[OpenElsewhere]:
    return [partial(_open_judge, cluster, table, judge, index) for index in range(table.judges)]


@asynccontextmanager
async def _open_judge(
    cluster: Cluster, table: ClusterTable, judge: JudgeTable, index: int, name: str
) -> AsyncGenerator[Link]:
    """A judge on a node. Raises NoRoom, or as `Cluster.host`."""
    on_gpu = table.judge_on == "gpu"
    timeout_s = request_timeout_s(judge, is_timed=on_gpu)
    async with (
        cluster.host(
            name,
            role="judge",
            index=index,
            settings={"table": judge.model_dump(mode="json")},
            num_gpus=int(on_gpu),
            num_cpus=int(not on_gpu),
            shares_gpu=on_gpu and table.share_gpus,
            labels=table.judge_labels,
            ready_s=READY_TIMEOUT_S + MARGIN_S,
        ) as hosted,
        open_url_client(hosted.url, timeout_s=timeout_s, token=cluster.token) as client,
    ):  # fmt: skip
        try:
            health = await ask_health(client)
        except NoAnswer as error:
            raise ChildDied(
                f"{name} runs on {hosted.host}, and {hosted.url} cannot be reached from here: "
                f"{error}; nodes must reach each other on all ports, as Ray needs too"
            ) from error
        yield Link(client=client, health=health, ended=hosted.wait, host=hosted.host)


def engines_elsewhere(
    cluster: Cluster, table: ClusterTable, serve: ServeTable
) -> OpenEngineElsewhere:
    return partial(_open_engine, cluster, table, serve)


@asynccontextmanager
async def _open_engine(
    cluster: Cluster, table: ClusterTable, serve: ServeTable, spec: ChildSpec
) -> AsyncGenerator[EngineElsewhere]:
    on_gpu = table.serve_on == "gpu"
    async with cluster.host(
        spec.name,
        role="engine",
        index=int(spec.name.rpartition("-")[2]),
        settings=settings_elsewhere(spec, serve),
        num_gpus=serve.tensor_parallel if on_gpu else 0,
        num_cpus=0 if on_gpu else serve.threads,
        shares_gpu=on_gpu and table.share_gpus,
        labels=table.serve_labels,
        files={"model_dir": Path(spec.config["model_dir"])},
        ready_s=start_timeout_s(serve) + MARGIN_S,
    ) as hosted:
        client = ReplicaClient(
            hosted.url, name=spec.name, timeout_s=serve.request_timeout_s, token=cluster.token
        )
        async with client:
            hosted.client = client
            yield hosted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a trainer on other nodes."""

    job: TrainerJob
    hosted: Sequence[Hosted] = ()

    async def lost(self) -> Hosted:
        """Wait until one has ended without success."""
        found: list[Hosted] = []

        async def watch(hosted: Hosted) -> None:
            if await hosted.wait() != SUCCESS:
                found.append(hosted)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for each in self.hosted:
                tasks.start_soon(watch, each)
            await anyio.sleep_forever()
        return found[0]


def is_cause(hosted: Hosted) -> bool:
    """True if these ranks ended first: by a signal, with their node, or with a report. Those that
    others left exit, as those with an error of their own do; rank 0's log names both."""
    return bool(hosted.failure) or not hosted.reason.startswith("exit ")


@asynccontextmanager
async def open_ranks(
    cluster: Cluster | None, table: ClusterTable, job: TrainerJob, *, say: Callable[[str], None]
) -> AsyncGenerator[Ranks]:
    """The ranks of `[cluster] train_nodes`, until the context ends. The first trainer of a run
    needs all nodes; later ones, after a node was lost, those that have room. Raises NoRoom: too few
    nodes have room; MachineError, ChildDied, Stalled: a node is unfit."""
    num = 0 if cluster is None else table.train_nodes
    while cluster is not None and num:
        async with AsyncExitStack() as stack:
            parts = split_job(job, num, address=await cluster.address())
            hosted, refused = await _open_all(stack, cluster, table, parts[1:])
            if not refused:
                cluster.has_trained = True
                yield Ranks(job=parts[0], hosted=hosted)
                return
        if not cluster.has_trained:
            raise refused[0]
        num = most_others(job, len(hosted))
        if num is None:
            raise MachineError(
                f"{refused[0]}; the checkpoint of its shards needs two ranks, and a batch equal "
                "parts"
            )
        say(f"{refused[0]}; the trainer continues on {num} of {table.train_nodes} nodes")
    yield Ranks(job=job)


async def _open_all(
    stack: AsyncExitStack, cluster: Cluster, table: ClusterTable, parts: Sequence[TrainerJob]
) -> tuple[list[Hosted], list[NoRoom]]:
    """Hosts for all parts at once, and the reasons of those without a node."""
    hosted: list[Hosted] = []
    refused: list[NoRoom] = []

    async def open_one(index: int, part: TrainerJob) -> None:
        try:
            hosted.append(await stack.enter_async_context(_host(cluster, table, part, index)))
        except NoRoom as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks:
        for index, part in enumerate(parts, 1):
            tasks.start_soon(open_one, index, part)
    return hosted, refused


def _host(
    cluster: Cluster, table: ClusterTable, part: TrainerJob, index: int
) -> AbstractAsyncContextManager[Hosted]:
    return cluster.host(
        f"trainer-{index}",
        role="trainer",
        index=index,
        settings={"job": part.config()},
        num_gpus=len(part.gpus),
        num_cpus=0 if part.gpus else part.stage.threads,
        labels=table.train_labels,
        files=files_of(part),
        ready_s=READY_S,
    )
