# pyright: strict
"""Judges of a pool on other nodes: the links that `evalpool.pool` opens, and opens again.

A node that is lost breaks its judges' connections. The pool judges their candidates elsewhere and
opens their links again: on any node with room, also one that has joined since.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from forge.cluster.order import Role
from forge.errors import ChildDied
from forge.evalpool.keeper import Link
from forge.evalpool.links import READY_TIMEOUT_S, ask_health
from forge.evalpool.pool import request_timeout_s
from forge.evalpool.wire import NoAnswer
from forge.process.ask import open_url_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from forge.cluster.cluster import Cluster
    from forge.config.schema import ClusterTable, JudgeTable
    from forge.evalpool.pool import OpenElsewhere


MARGIN_S = 10.0
"""Added to a child's own limit, so that its error arrives before the broker counts as silent."""


def judges_elsewhere(
    cluster: Cluster, table: ClusterTable, judge: JudgeTable
) -> list[OpenElsewhere]:
    """One opener for each judge of `[cluster]`."""
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
            role=Role.JUDGE,
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
        yield Link(
            client=client, health=health, ended=hosted.wait, timeout_s=timeout_s, host=hosted.host
        )
