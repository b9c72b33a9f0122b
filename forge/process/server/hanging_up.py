# pyright: strict
"""Work for a request that ends when its client hangs up.

Used by servers whose answers take long and cost something: `forge judge --serve`, engines. The
connection calls back at its end: a task that waits for it costs as much as the rest of a short
request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from forge.process.server.connections import GuardedConnection

T = TypeVar("T")

CONNECTION = "forge.connection"
"""Key of the connection in the state of a request."""


async def unless_hung_up(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work` for a request whose body has been read; `work` is cancelled if the
    client hangs up first. Behind a server that is not forge's, `work` goes on.

    Raises:
        ClientDisconnect: the client hung up; the door answers it.
        Exception: an error of `work`, as it is.
    """
    from starlette.requests import ClientDisconnect

    connection = connection_of(request)
    if connection is None:
        return await work()
    with anyio.CancelScope() as scope, connection.telling(scope.cancel):
        return await work()
    raise ClientDisconnect


def connection_of(request: Request) -> GuardedConnection | None:
    """The connection of a request; None behind a server that is not forge's."""
    return request.scope.get("state", {}).get(CONNECTION)
