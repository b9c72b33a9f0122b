# pyright: strict
"""Keeps a judge at one seat: opens it, replaces it when it ends or is quarantined.

    open ──▶ watch until it ends, falls silent or is quarantined ──▶ back-off ──┐
      ▲                                                                         │
      └─────────────────────────────────────────────────────────────────────────┘

One task a seat, started by `pool.py`. It opens a `Link`: to a judge that is a child of this run, or
to a pool behind a URL. Promises: after its first success it ends only when cancelled; a child ends
with its link; a URL that does not answer is a MachineError that names it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc

from forge.config.schema import JUDGE_URL
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, NoRoom, Stalled
from forge.evalpool.seating import JudgeKind, Seat, State
from forge.evalpool.wire import TOKEN_VARIABLE, NoAnswer, ask_health
from forge.process.ask import open_client, open_url_client
from forge.process.child import ChildSpec, logged_error, open_child
from forge.process.environment import child_env

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import httpx

    from forge.config.schema import JudgeTable
    from forge.evalpool.seating import Seating
    from forge.process.child import ProcessObserver
    from forge.process.devices import Gpu


logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 10.0
END_NOTICE_S = 1.0
"""Wait after a broken connection for the notice of the judge's death, before the judge is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An open connection to a judge that answers."""

    client: httpx.AsyncClient
    health: dict[str, Any]
    ended: Callable[[], Awaitable[str]]
    """Waits until the judge has ended; returns the reason."""
    host: str = ""
    """Machine of the judge, if it is a node's."""


OpenLink = Callable[[], AbstractAsyncContextManager[Link]]


async def keep(
    seating: Seating, seat: Seat, open_link: OpenLink, *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Keeps a seat taken until cancelled. The first start must succeed, or find no room."""
    backoff_s, is_first, logged = FIRST_BACKOFF_S, True, ""
    while True:
        num_taken = seat.num_taken
        try:
            async with open_link() as link:
                seat.kinds, seat.host = read_kinds(link.health), link.host
                seat.capacity = int(link.health.get("capacity", seat.capacity))
                seating.judge_opened(seat, link.client)
                if is_first:
                    task_status.started()
                is_first, logged = False, ""
                try:
                    reason = await _reason_to_replace(seat, link)
                finally:
                    seating.judge_closed(seat)
                logger.warning("%s %s; restarting", seat.name, reason)
        except (ForgeError, NoAnswer) as error:
            if is_first and not isinstance(error, NoRoom):
                raise
            if is_first:
                seat.why = str(error)
                task_status.started()
                is_first = False
            if logged != (logged := str(error)):  # once, however long a server is gone
                logger.error("%s cannot be started: %s", seat.name, error)
        if seat.num_taken > num_taken and not seat.num_faults:
            backoff_s = FIRST_BACKOFF_S
        await anyio.sleep(backoff_s)
        backoff_s = min(backoff_s * 2, LONGEST_BACKOFF_S)


async def _reason_to_replace(seat: Seat, link: Link) -> str:
    """Waits until the judge has ended, does not answer, or is quarantined; returns which."""
    reasons: list[str] = []

    async def end() -> None:
        reasons.append(f"ended: {await link.ended()}")
        tg.cancel_scope.cancel()

    async with anyio.create_task_group() as tg:
        tg.start_soon(end)
        while not seat.is_lost and seat.state is not State.QUARANTINED:
            await seat.news.wait()
            seat.news = anyio.Event()
        reason = "did not answer" if seat.is_lost else f"is quarantined: {seat.why}"
        if seat.is_lost:
            await anyio.sleep(END_NOTICE_S)
        reasons.append(reason)
        tg.cancel_scope.cancel()
    return reasons[0]


def read_kinds(health: dict[str, Any]) -> tuple[JudgeKind, ...]:
    """Kinds of the judges behind one /health. Raises NoAnswer if it is not a judge's answer."""
    try:
        return tuple(
            JudgeKind(**{each.name: str(kind[each.name]) for each in fields(JudgeKind)})
            for kind in health.get("judges", [health])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NoAnswer(f"its /health is not a judge's: {error!r}") from error


READY_TIMEOUT_S = 120.0
PROBE_EVERY_S = 5.0
PROBES = 3
"""Probes in a row without an answer until a pool counts as gone. A single one may be a busy server,
and all requests in flight would be dropped."""


@asynccontextmanager
async def open_child_link(
    spec: ChildSpec, *, observer: ProcessObserver | None, timeout_s: float
) -> AsyncGenerator[Link]:
    """Start a judge. Raises MachineError if it found no sandbox, ChildDied or Stalled."""
    assert spec.socket_path is not None
    try:
        async with (
            open_child(spec, observer=observer) as child,
            open_client(spec.socket_path, timeout_s=timeout_s) as client,
        ):
            health = await ask_health(client)
            yield Link(client=client, health=health, ended=child.wait)
    except (ChildDied, Stalled) as error:
        logged = logged_error(error, MachineError, ChildDied)
        if logged is None:
            raise
        raise type(logged)(f"{spec.name}: {logged}") from error


@asynccontextmanager
async def open_url_link(url: str, *, timeout_s: float) -> AsyncGenerator[Link]:
    """Connects to a served pool once its judges have started. Raises ConfigError, MachineError."""
    if not JUDGE_URL.fullmatch(url):
        raise ConfigError(f'judge.url: found "{url}"; http://HOST:PORT or unix:/PATH')
    token = os.environ.get(TOKEN_VARIABLE) or None
    async with open_url_client(url, timeout_s=timeout_s, token=token) as client:
        try:
            health = await ask_health(client, patience_s=READY_TIMEOUT_S)
            read_kinds(health)
        except NoAnswer as error:
            raise MachineError(
                f"judge.url: no judges answer at {url}: {error}; "
                '"forge judge --serve" on that machine starts them'
            ) from error

        async def ended() -> str:
            num_failed, message = 0, ""
            while num_failed < PROBES:
                await anyio.sleep(PROBE_EVERY_S)
                try:
                    await ask_health(client)
                    num_failed = 0
                except NoAnswer as error:
                    num_failed, message = num_failed + 1, str(error)
            return message

        yield Link(client=client, health=health, ended=ended)


def judge_spec(
    name: str,
    *,
    table: JudgeTable,
    socket_dir: Path,
    log_dir: Path,
    capacity: int,
    gpu: Gpu | None,
    cores: tuple[int, ...],
    harvests: str = "",
) -> ChildSpec:
    """The child of a judge, whose candidates run on `cores`; `harvests` as in `_be_zygote`."""
    socket_path = socket_dir / f"{name}.sock"
    config = {
        "socket_path": str(socket_path), "table": table.model_dump(mode="json"),
        "concurrency": capacity, "cores": cores, "harvests": harvests,
        "gpu": None if gpu is None else {"uuid": gpu.uuid, "minor": gpu.minor},
    }  # fmt: skip
    uuids = () if gpu is None else (gpu.uuid,)
    return ChildSpec(
        name=name,
        argv=(sys.executable, "-m", "forge.evalpool.judge.start"),
        log_path=log_dir / f"{name}.log",
        env=child_env(threads=1, gpus=uuids, extra=table.env),
        socket_path=socket_path,
        config=config,
        ready_timeout_s=READY_TIMEOUT_S,
        devices=", ".join(uuids) or "cpu",
    )
