# pyright: strict
"""The supervisor's side of a cluster: the broker, kept alive, and the hosts that it opens.

Opened by `runner.work` for as long as a role needs it. Promises: a host's log is copied into the
run's log folder; a host ends with its context; whatever fails is a ForgeError that names the child.
"""

from __future__ import annotations

import base64
import logging
import secrets
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from forge.cluster.broker_process import BROKER, absent_broker, broker_spec, keep_broker
from forge.cluster.connection import SURVEY_S
from forge.cluster.order import Order, Role
from forge.cluster.sources import source_digest
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, NoRoom, Stalled
from forge.process.ask import open_client, send

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    import httpx

    from forge.config.schema import ClusterTable
    from forge.process.child import ProcessObserver

logger = logging.getLogger(__name__)

ROOM_S = 45.0
"""Maximum wait for a node with room, its first import of forge included."""
TRANSFER_S = 1800.0
"""Maximum time until weights have reached a node: 140 GB at 1 Gbit/s."""
NEWS_S = 90.0
STOP_S = 20.0
KINDS: dict[str, type[ForgeError]] = {
    kind.__name__: kind for kind in (NoRoom, MachineError, ConfigError, ChildDied, Stalled)
}


@dataclass(slots=True, kw_only=True, eq=False)
class Hosted:
    """A child on a node."""

    name: str
    key: str
    url: str
    host: str
    """Name of its machine."""
    log_path: Path
    """The copy of its log, here."""
    log_offset: int
    """Size of that copy before this child."""
    reason: str = ""
    """Reason of its end; empty while it runs."""
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def wait(self) -> str:
        """Wait for its end and return the reason."""
        await self.ended.wait()
        return self.reason

    def end(self, reason: str) -> None:
        """Note that it has ended. The first reason stays."""
        self.reason = self.reason or reason
        self.ended.set()


class Cluster:
    """The hosts of a run. Made by `open_cluster`."""

    def __init__(
        self, http: httpx.AsyncClient, tasks: anyio.abc.TaskGroup, *, run: str, log_dir: Path,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`say` prints where each child runs."""
        self.token = secrets.token_urlsafe(32)
        self._http, self._tasks = http, tasks
        self._run, self._log_dir, self._say = run, log_dir, say
        self._ids = count()

    async def survey(self, needs: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """The living nodes, this machine first, with facts about each. `needs`: packages and paths
        that are looked for."""
        return (await self._ask("/survey", needs, timeout_s=SURVEY_S + STOP_S))["nodes"]

    @asynccontextmanager
    async def host(
        self, name: str, *, role: Role, index: int, settings: Mapping[str, Any], num_gpus: int,
        num_cpus: int, labels: Mapping[str, str], ready_s: float, weights: Path | None = None,
    ) -> AsyncGenerator[Hosted]:  # fmt: skip
        """A child on a node with room, until the context ends.

        Args:
            weights: checkpoint that the child starts with.
            ready_s: maximum time until the child is ready.

        Raises:
            NoRoom: no node has room now, or the cluster does not answer.
            MachineError, ChildDied, Stalled: the child did not start, or its node is unfit.
        """
        key = f"{name}.{next(self._ids)}"
        order = Order(
            run=self._run, name=name, role=role, index=index, token=self.token,
            sources=source_digest(), num_gpus=num_gpus, settings=settings,
            weights="" if weights is None else await self._put(weights),
        )  # fmt: skip
        body = {
            "id": key, "order": order.to_json(), "num_cpus": num_cpus, "labels": dict(labels),
            "room_s": ROOM_S,
        }  # fmt: skip
        timeout_s = ROOM_S + ready_s + (TRANSFER_S if weights else 0.0)
        following = anyio.CancelScope()
        try:
            with absent_broker():
                found = await self._ask("/open", body, timeout_s=timeout_s)
            log_path = self._log_dir / f"{name}.log"
            hosted = Hosted(
                name=name, key=key, url=found["url"], host=found["host"], log_path=log_path,
                log_offset=log_path.stat().st_size if log_path.exists() else 0,
            )  # fmt: skip
            self._say(f"{name} runs on {hosted.host} ({hosted.url}, {found['devices']})")
            self._tasks.start_soon(self._follow, hosted, following)
            yield hosted
        finally:
            following.cancel()
            with anyio.CancelScope(shield=True):
                await self._stop(key)

    async def bring(self, hosted: Hosted, path: Path) -> Path:
        """Copy a directory of weights to the node of a child; returns the path there."""
        body = {"id": hosted.key, "key": await self._put(path)}
        return Path((await self._ask("/bring", body, timeout_s=TRANSFER_S))["path"])

    async def end(self, hosted: Hosted) -> None:
        """End a child before its context ends."""
        await self._stop(hosted.key)
        hosted.end("killed by forge")

    def dump_stacks(self, hosted: Hosted) -> None:
        """Make a child write its stacks to its log."""
        self._tasks.start_soon(self._dump_stacks, hosted.key)

    async def _dump_stacks(self, key: str) -> None:
        with suppress(ForgeError):
            await self._ask("/stacks", {"id": key}, timeout_s=STOP_S)

    async def _put(self, path: Path) -> str:
        with absent_broker():
            body = {"path": str(path.absolute())}
            return (await self._ask("/put", body, timeout_s=TRANSFER_S))["key"]

    async def _stop(self, key: str) -> None:
        with suppress(ForgeError):
            await self._ask("/stop", {"id": key}, timeout_s=STOP_S)

    async def _follow(self, hosted: Hosted, scope: anyio.CancelScope) -> None:
        """Copy the child's log until its end, and note the reason."""
        offset = 0
        with scope, hosted.log_path.open("ab") as log:
            while not hosted.reason:
                try:
                    asked = {"id": hosted.key, "offset": offset}
                    news = await self._ask("/news", asked, timeout_s=NEWS_S)
                except ForgeError as error:
                    news = {"log": "", "ended": str(error)}
                text = base64.b64decode(news["log"])
                offset += log.write(text)
                log.flush()
                if news["ended"]:
                    hosted.end(news["ended"])

    async def _ask(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        answer = await send(self._http, "POST", path, body, server=BROKER, timeout_s=timeout_s)
        found: Any = answer.json()
        if kind := KINDS.get(found.get("kind", "")):
            raise kind(found["error"])
        if answer.status != 200:
            raise MachineError(f"{BROKER}: {found.get('error', answer.status)}")
        return found


@asynccontextmanager
async def open_cluster(
    table: ClusterTable,
    *,
    run: str,
    socket_dir: Path,
    log_dir: Path,
    observer: ProcessObserver | None = None,
    say: Callable[[str], None] = logger.info,
) -> AsyncGenerator[Cluster]:
    """Connects to the cluster; every host ends with the context.

    Raises MachineError if Ray is not installed, nobody answers, or its version is another one.
    """
    assert table.address is not None
    spec = broker_spec(table.address, socket_dir=socket_dir, log_dir=log_dir)
    assert spec.socket_path is not None
    async with (
        open_client(spec.socket_path, timeout_s=NEWS_S) as http,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(keep_broker, spec, observer)
        try:
            yield Cluster(http, tasks, run=run, log_dir=log_dir, say=say)
        finally:
            tasks.cancel_scope.cancel()
