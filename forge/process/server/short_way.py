# pyright: strict
"""Handlers of fixed paths, called without Starlette's router.

Used by `forge judge --serve` behind its door. The router tries one route after the other, and its
layers catch errors that no handler of forge raises (HTTPException): half of the time between the
server and a handler. Any other request goes on to the router.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class ShortWay:
    """ASGI middleware in front of the router for the same routes."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[BaseRoute]) -> None:
        """Answer requests to `routes` with a fixed path and a coroutine function. No pattern may
        stand before a fixed path that it matches."""
        from starlette.routing import Route

        self._app = app
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        for route in routes:
            if isinstance(route, Route) and "{" not in route.path:
                endpoint: Any = route.endpoint
                if iscoroutinefunction(endpoint):
                    for method in route.methods or ():
                        self._endpoints.setdefault((method, route.path), endpoint)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        from starlette.requests import Request

        endpoint = None
        if scope["type"] == "http":
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            return await self._app(scope, receive, send)
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
