# pyright: strict
"""Ranks of a trainer on other nodes: rank 0 and its neighbours stay on the supervisor's machine.

    supervisor ── job ──▶ trainer: ranks 0 ... k-1   (control.sock, checkpoints, published weights)
        └── order ──▶ host on a node: ranks k ... 2k-1, ...      ◀─ gloo, NCCL ─▶

A node has the model, the rows and the checkpoint as copies. Called by `runner.stages.trainer`. A
lost rank ends the trainer, which continues from its checkpoint: with as many nodes as have room.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from forge.cluster.order import Role
from forge.errors import MachineError, NoRoom
from forge.process.child import describe_exit
from forge.train.handle import files_of, most_others, split_job

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from forge.cluster.cluster import Cluster
    from forge.cluster.hosted import Hosted
    from forge.config.schema import ClusterTable
    from forge.train.handle import TrainerJob

READY_S = 30.0
"""Maximum time until a host has started its ranks, which import torch later."""
SUCCESS = describe_exit(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of a trainer on other nodes."""

    job: TrainerJob
    """The job of the ranks on this machine."""
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
    cluster: Cluster | None,
    table: ClusterTable,
    job: TrainerJob,
    *,
    say: Callable[[str], None],
) -> AsyncGenerator[Ranks]:
    """The ranks of `[cluster] train_nodes`, until the context ends. The first trainer of a run
    needs all nodes; later ones, after a node was lost, those that have room.

    Raises:
        NoRoom: too few nodes have room.
        MachineError, ChildDied, Stalled: a node is unfit.
    """
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
        role=Role.TRAINER,
        index=index,
        settings={"job": part.config()},
        num_gpus=len(part.gpus),
        num_cpus=0 if part.gpus else part.stage.threads,
        labels=table.train_labels,
        files=files_of(part),
        ready_s=READY_S,
    )
