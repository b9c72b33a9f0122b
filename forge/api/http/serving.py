"""`forge judge --serve`: a pool for other programs (`/v1/`) and for forge's own processes."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forge.api.answering import answering_on
from forge.api.http.routes import JudgeApi
from forge.api.subjects import known_problems
from forge.errors import ConfigError
from forge.evalpool.links import TOKEN_VARIABLE
from forge.evalpool.served import serve_pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from starlette.routing import BaseRoute

    from forge.commands.judge.settings import JudgeSettings
    from forge.config.schema.problems import RowFormat
    from forge.evalpool.pool import Pool
    from forge.evalpool.served import MoreRoutes, PoolApp


def serve(
    settings: JudgeSettings,
    *,
    problems: Path | None,
    candidate: object,
    format: RowFormat,
    socket: Path | None,
    listen: str | None,
    more: MoreRoutes | None = None,
    more_paths: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Serves a pool until a signal ends it.

    Args:
        problems: a problem, a directory of them or a file of rows that clients may name.
        format: columns of a file of rows.
        more: makes further routes, and `more_paths` describes them in `/openapi.json`.

    Raises:
        ConfigError: an argument that cannot be used.
        MachineError: no such GPU, no sandbox works here, or the address is taken.
    """
    if candidate is not None:
        raise ConfigError("--serve takes no CANDIDATE: clients send them")
    if settings.url is not None:
        raise ConfigError("--url: not allowed with --serve, which runs its own judges")
    table, gpus = settings.table(), settings.gpus()
    known = known_problems(problems, format=format)
    is_timed = bool(gpus) and table.timing

    def routes(pool: Pool, served: PoolApp) -> Sequence[BaseRoute]:
        api = JudgeApi(
            answering_on(pool, table), served, known=known, is_timed=is_timed, more_paths=more_paths
        )
        return [*api.routes(), *(() if more is None else more(pool, served))]

    token = os.environ.get(TOKEN_VARIABLE) or None
    serve_pool(table, socket=socket, listen=listen, token=token, gpus=gpus, more=routes)
