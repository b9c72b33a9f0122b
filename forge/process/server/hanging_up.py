# pyright: strict
"""Work for a request that ends when its client hangs up.

Used by servers whose answers take long and cost something: `forge judge --serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

T = TypeVar("T")


async def unless_hung_up(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """The result of `work` for a request whose body has been read; `work` is cancelled if the
    client hangs up first.

    Raises:
        ClientDisconnect: the client hung up; the door answers it.
        Exception: an error of `work`, as it is.
    """
    from starlette.requests import ClientDisconnect

    done: list[T] = []
    failures: list[Exception] = []
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            done.append(await work())
        except Exception as error:  # a task group would raise it in an exception group
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not done:
        raise ClientDisconnect
    return done[0]
