"""Opens the link of a seat: to a judge that is a child of this run, or to a pool behind a URL.

Called by `keeper.py` through `pool.py`. Promises: a child ends with its link; a URL that does not
answer is a MachineError that names it, and is opened again when it answers.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from forge.config.schema import JUDGE_URL
from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.evalpool.keeper import Link, read_kinds
from forge.evalpool.wire import NoAnswer
from forge.process.answers import error_message
from forge.process.ask import open_client, open_url_client, send
from forge.process.child import ChildSpec, open_child
from forge.process.environment import child_env
from forge.process.logtail import logged_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import httpx

    from forge.config.schema import JudgeTable
    from forge.process.child import ProcessObserver
    from forge.process.devices import Gpu

READY_TIMEOUT_S = 120.0
PROBE_TIMEOUT_S = 10.0
"""Maximum wait for the /health of a pool behind a URL."""
PROBE_EVERY_S = 5.0
PROBES = 3
"""Probes in a row without an answer until a pool counts as gone. A single one may be a busy server,
and all requests in flight would be dropped."""
TOKEN_VARIABLE = "FORGE_JUDGE_TOKEN"


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
            yield Link(client=client, health=health, ended=child.wait, timeout_s=timeout_s)
    except (ChildDied, Stalled) as error:
        logged = logged_error(error, MachineError, ChildDied)
        if logged is None:
            raise
        raise type(logged)(f"{spec.name}: {logged}") from error


@asynccontextmanager
async def open_url_link(url: str, *, timeout_s: float) -> AsyncGenerator[Link]:
    """Connect to a served pool. Raises ConfigError for an invalid URL, MachineError."""
    if not JUDGE_URL.fullmatch(url):
        raise ConfigError(f'judge.url: found "{url}"; http://HOST:PORT or unix:/PATH')
    token = os.environ.get(TOKEN_VARIABLE) or None
    async with open_url_client(url, timeout_s=timeout_s, token=token) as client:
        try:
            health = await ask_health(client)
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

        yield Link(client=client, health=health, ended=ended, timeout_s=timeout_s)


def judge_spec(
    name: str,
    *,
    table: JudgeTable,
    socket_dir: Path,
    log_dir: Path,
    threads: int,
    capacity: int,
    gpu: Gpu | None,
    cores: tuple[int, ...],
) -> ChildSpec:
    """The child of a judge, whose candidates run on `cores`."""
    socket_path = socket_dir / f"{name}.sock"
    config = {
        "socket_path": str(socket_path),
        "table": table.model_dump(mode="json"),
        "concurrency": capacity,
        "cores": cores,
        "gpu": None if gpu is None else {"uuid": gpu.uuid, "minor": gpu.minor},
    }
    uuids = () if gpu is None else (gpu.uuid,)
    return ChildSpec(
        name=name,
        argv=(sys.executable, "-m", "forge.evalpool.judge.app"),
        log_path=log_dir / f"{name}.log",
        env=child_env(threads=threads, gpus=uuids, extra=table.env),
        socket_path=socket_path,
        config=config,
        ready_timeout_s=READY_TIMEOUT_S,
        devices=", ".join(uuids) or "cpu",
    )


async def ask_health(client: httpx.AsyncClient) -> dict[str, Any]:
    """The answer of a judge or pool to /health. Raises NoAnswer."""
    try:
        response = await send(client, "GET", "/health", server="it", timeout_s=PROBE_TIMEOUT_S)
        if response.status == 401:
            raise NoAnswer(f"it needs the token of its {TOKEN_VARIABLE} in {TOKEN_VARIABLE} here")
        if response.status != 200:
            raise NoAnswer(f"HTTP {response.status}: {error_message(response.content)}")
        health: Any = response.json()
    except (ChildDied, Stalled, ValueError) as error:
        raise NoAnswer(str(error)) from error
    if not isinstance(health, dict):
        raise NoAnswer("its /health is not an object")
    return health
