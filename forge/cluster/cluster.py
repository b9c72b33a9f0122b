"""The side of the supervisor of a cluster: the broker, kept alive, and the children that it opens
on nodes.

Opened by `runner.work` for as long as a role needs it. Promises: a host's log is copied into the
run's log folder; a host ends with its context; whatever fails is a ForgeError that names the child.
"""

from __future__ import annotations

import base64
import logging
import secrets
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.abc

from forge.cluster.host import Order
from forge.cluster.nodes import SURVEY_S
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, NoRoom, Stalled
from forge.origin import source_digest
from forge.process.ask import open_client, send
from forge.process.child import ChildSpec, ProcessObserver, logged_error, open_child, read_ending
from forge.process.environment import child_env

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    import httpx

    from forge.config.schema import ClusterTable

logger = logging.getLogger(__name__)

ROOM_S = 45.0
"""Maximum wait for a node with room, its first import of forge included."""
MAX_LOST = 3
"""Hosts that may be lost, one after the other, while they start a child."""
TRANSFER_S = 1800.0
"""Maximum time until weights have reached a node: 140 GB at 1 Gbit/s."""
NEWS_S = 90.0
STOP_S = 20.0
BROKER = "cluster"
CONNECT_S = 90.0
"""Maximum time until the broker is connected: importing Ray takes seconds."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
"""Pauses before a broker that ended is started again."""


class HostLost(ChildDied):
    """A host is gone, with its node or without."""


KINDS: dict[str, type[ForgeError]] = {
    kind.__name__: kind
    for kind in (NoRoom, MachineError, ConfigError, ChildDied, HostLost, Stalled)
}


class NodeObserver(ProcessObserver, Protocol):
    """Receives starts and ends of children, on nodes too."""

    def started(self, name: str, *, pid: int, devices: str, log_path: Path, node: str = "") -> None:
        """A child was started. `node`: name and address of its machine; empty for this one."""
        ...


class Cluster:
    """The hosts of a run. Made by `open_cluster`."""

    def __init__(
        self, http: httpx.AsyncClient, tasks: anyio.abc.TaskGroup, *, run: str, log_dir: Path,
        say: Callable[[str], None], observer: NodeObserver | None = None,
    ) -> None:  # fmt: skip
        """`say` prints where each child runs."""
        self.has_trained = False
        """True once a trainer had all its nodes."""
        self._observer = observer
        self.token = secrets.token_urlsafe(32)
        self.tasks, self._http = tasks, http
        self._run, self._log_dir, self._say = run, log_dir, say
        self._ids = count()

    async def survey(self, needs: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
        """The living nodes, this machine first, with facts about each. `needs`: packages and paths
        that are looked for."""
        return (await self.ask("/survey", needs, timeout_s=SURVEY_S + STOP_S))["nodes"]

    async def address(self) -> str:
        return (await self.ask("/address", {}, timeout_s=STOP_S))["ip"]

    @asynccontextmanager
    async def host(
        self, name: str, *, role: str, index: int, settings: Mapping[str, Any], num_gpus: int,
        num_cpus: int, labels: Mapping[str, str], ready_s: float,
        files: Mapping[str, Path] | None = None, shares_gpu: bool = False,
    ) -> AsyncGenerator[Hosted]:  # fmt: skip
        """A child on a node with room, until the context ends. Raises NoRoom: no node has room now,
        or the cluster does not answer; MachineError, ChildDied, Stalled: the child did not start,
        or its node is unfit. `files` are copied there; the child's config has their paths on the
        node. `shares_gpu`: it takes half of a card."""
        key = f"{name}.{next(self._ids)}"
        order = Order(
            run=self._run, name=name, role=role, index=index, token=self.token,
            sources=source_digest(), num_gpus=num_gpus, shares_gpu=shares_gpu, settings=settings,
            files={each: str(path.absolute()) for each, path in (files or {}).items()},
        )  # fmt: skip
        body = {
            "id": key, "order": order.to_json(), "num_cpus": num_cpus, "labels": dict(labels),
            "room_s": ROOM_S,
        }  # fmt: skip
        timeout_s = ROOM_S + ready_s + (TRANSFER_S if files else 0.0)
        following = anyio.CancelScope()
        try:
            found = await self._open(body, timeout_s=timeout_s)
            log_path = self._log_dir / f"{name}.log"
            hosted = Hosted(
                cluster=self, name=name, key=key, url=found["url"], host=found["host"],
                log_path=log_path,
                log_offset=log_path.stat().st_size if log_path.exists() else 0,
            )  # fmt: skip
            where = ", ".join(filter(None, (hosted.url, found["devices"])))
            self._say(f"{name} runs on {hosted.host} ({where})")
            self.tasks.start_soon(hosted.follow, following)
            pid, observer = int(found["pid"]), self._observer
            if observer is not None:
                address = urlsplit(hosted.url).hostname or ""
                observer.started(
                    name, pid=pid, devices=str(found["devices"]), log_path=log_path,
                    node=" ".join(filter(None, (hosted.host, address))),
                )  # fmt: skip
            try:
                yield hosted
            finally:
                if observer is not None:
                    observer.ended(name, pid=pid, reason=hosted.reason or "stopped with its host")
        finally:
            following.cancel()
            with anyio.CancelScope(shield=True):
                await self.stop(key)

    async def _open(self, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The facts of a new host. One that is lost before its child is ready is replaced."""
        for _ in range(MAX_LOST):
            try:
                return await self.ask("/open", body, timeout_s=timeout_s)
            except HostLost as error:
                logger.warning("%s: %s; it is opened again", body["id"], error)
            await self.stop(body["id"])
        return await self.ask("/open", body, timeout_s=timeout_s)

    async def stop(self, key: str) -> None:
        """End a host and its child, where they can be reached."""
        with suppress(ForgeError):
            await self.ask("/stop", {"id": key}, timeout_s=STOP_S)

    async def ask(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The broker's answer. Raises NoRoom while there is no broker, and its errors."""
        try:
            answer = await send(self._http, "POST", path, body, server=BROKER, timeout_s=timeout_s)
        except ChildDied as error:  # it is started again
            raise NoRoom(f"the cluster is not connected: {error}") from error
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
    observer: NodeObserver | None = None,
    say: Callable[[str], None] = logger.info,
) -> AsyncGenerator[Cluster]:
    """Connects to the cluster; every host ends with the context.

    Raises MachineError if Ray is not installed, no node answers, or its version is another one.
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
            yield Cluster(http, tasks, run=run, log_dir=log_dir, say=say, observer=observer)
        finally:
            tasks.cancel_scope.cancel()


@dataclass(slots=True, kw_only=True, eq=False)
class Hosted:
    cluster: Cluster
    name: str
    key: str
    url: str
    host: str
    log_path: Path
    log_offset: int
    """Size of that copy before this child."""
    client: Any = None
    reason: str = ""
    """Reason of its end; empty while it runs."""
    failure: Mapping[str, Any] | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def is_alive(self) -> bool:
        return not self.reason

    async def wait(self) -> str:
        await self.ended.wait()
        return self.reason

    async def kill(self) -> None:
        await self.cluster.stop(self.key)
        self._end("killed by forge")

    def dump_stacks(self) -> None:
        self.cluster.tasks.start_soon(self._dump_stacks)

    async def _dump_stacks(self) -> None:
        with suppress(ForgeError):
            await self.cluster.ask("/stacks", {"id": self.key}, timeout_s=STOP_S)

    def died(self, *, doing: str = "") -> ChildDied:
        while_doing = f" while {doing}" if doing else ""
        lines = read_ending(self.log_path, offset=self.log_offset)
        return ChildDied(
            f"{self.name} on {self.host} died{while_doing}: {self.reason}. "
            f"Last lines of {self.log_path}:\n{lines}"
        )

    async def bring(self, path: Path) -> Path:
        """Copy a directory of weights to its node; returns the path there."""
        body, began = {"id": self.key, "path": str(path.absolute())}, time.monotonic()
        found = await self.cluster.ask("/bring", body, timeout_s=TRANSFER_S)
        logger.info("%s has %s (%.3f s)", self.name, path.name, time.monotonic() - began)
        return Path(found["path"])

    async def follow(self, scope: anyio.CancelScope) -> None:
        """Copy its log until its end, and note the reason."""
        offset = 0
        with scope, self.log_path.open("ab") as log:
            while self.is_alive:
                asked = {"id": self.key, "offset": offset}
                try:
                    news: Any = await self.cluster.ask("/news", asked, timeout_s=NEWS_S)
                except ForgeError as error:
                    news = {"log": "", "ended": str(error)}
                offset += log.write(base64.b64decode(news["log"]))
                log.flush()
                if news["ended"]:
                    self.failure = news.get("failure")
                    self._end(news["ended"])

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason  # the first one stays
        self.ended.set()


def broker_spec(address: str, *, socket_dir: Path, log_dir: Path) -> ChildSpec:
    socket_path = socket_dir / f"{BROKER}.sock"
    return ChildSpec(
        name=BROKER,
        argv=(sys.executable, "-m", "forge.cluster.broker"),
        log_path=log_dir / f"{BROKER}.log",
        env=child_env(threads=1),
        socket_path=socket_path,
        config={"address": address, "socket_path": str(socket_path)},
        ready_timeout_s=CONNECT_S,
    )


async def keep_broker(
    spec: ChildSpec, observer: ProcessObserver | None, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Keep the broker running. The first start must succeed; later ones are repeated: the head of
    the cluster may come back."""
    is_first, pause_s = True, FIRST_PAUSE_S
    while True:
        try:
            async with open_child(spec, observer=observer) as child:
                if is_first:
                    task_status.started()
                is_first, pause_s = False, FIRST_PAUSE_S
                reason = await child.wait()
                logger.error("%s ended: %s; its hosts ended with it", BROKER, reason)
        except (ChildDied, Stalled) as error:
            if is_first:
                raise logged_error(error, MachineError, ConfigError) or error from error
            logger.error("%s cannot be started: %s", BROKER, error)
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
