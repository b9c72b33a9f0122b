"""A front with one engine behind it, in the tests' own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
from starlette.applications import Starlette

from forge.commands.serve import Front
from forge.process.busy import BusyClock
from forge.process.server.serving import serve_task
from forge.serve.served import Served


@asynccontextmanager
async def fronting(
    engine: Starlette, folder: Path, *, timeout_s: float = 5.0
) -> AsyncIterator[Front]:
    """A front whose engine is `engine`, served in a folder with a short path."""
    server: Any = SimpleNamespace(
        name="serve-0", load=0, is_up=True, socket_path=folder / "serve-0.sock",
        generated_tokens=0, busy=BusyClock(), num_deaths=0,
    )  # fmt: skip
    replicas: Any = Served([server], stop_token_ids=(), slots=4, wait_s=5.0)
    replicas.version, replicas.features, replicas.all = 0, frozenset(), [server]
    front = Front(replicas, model="ours", token=None, is_local=False, timeout_s=timeout_s)
    async with anyio.create_task_group() as group:
        await group.start(serve_task, engine, server.socket_path)
        try:
            yield front
        finally:
            await front.close()
            group.cancel_scope.cancel()
