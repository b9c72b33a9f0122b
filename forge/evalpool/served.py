"""A pool alone, for runs of other processes and machines: `forge judge --serve`.

    POST /judge {problem: {problem_id, source, entry_point, precision}, code,
                 options: {timing, profile, smoke}} → Verdict
    POST /examine {problem} → Examination
    GET /health → {ok, capacity, in_flight, queue, judges: [{name, state, device, ...}], ...}

Called by `runner/judging.py`; `[judge] url` connects. Promises: off loopback nobody is served
without the token, and on it no web page is, whose requests are no JSON (415) or name another host
(403); a body is bounded (413), comes in time (408) and is read as data (422); beyond
`max_in_flight` a caller is told to come again (503 with Retry-After); SIGTERM and Ctrl-C end it
with every child. Not covered: who connects and says nothing keeps one of `MAX_CONNECTIONS`.
"""

from __future__ import annotations

import hmac
import json
import signal
import socket as sockets
import sys
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from forge.errors import ConfigError, MachineError, Stalled
from forge.evalpool.door import bound_address, bound_path, is_loopback, url_of
from forge.evalpool.links import TOKEN_VARIABLE
from forge.evalpool.pool import Pool, open_pool
from forge.evalpool.seat import State
from forge.evalpool.wire import BadRequest, parse_problem, parse_request
from forge.process.sockets import open_socket_dir
from forge.process.uds import ServerLimits, serve_listener
from forge.records.verdict import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from forge.config.schema import JudgeTable
    from forge.process.devices import Gpu

    Handler = Callable[[Any], Awaitable[dict[str, Any]]]

MAX_BODY_BYTES = 16 << 20
"""A source of 5 MB, escaped, and its problem."""
MAX_DRAINED_BYTES = 64 << 20
"""Read and dropped: most clients look for an answer only when all is sent."""
PARSED_ON_LOOP_BYTES = 256 << 10
"""A larger body is parsed in a thread: a megabyte takes 10 ms."""
BODY_TIMEOUT_S = 60.0
MAX_CONNECTIONS = 512
"""Open at once, idle ones too; who comes on top is told to come again."""
KEEP_ALIVE_S = 75
"""Longer than a client keeps an idle connection (httpx: 5 s), so that none is closed under it."""
RETRY_AFTER_S = 1
WAITING_PER_JUDGE = 4
"""Requests in flight for each that is being judged; the rest of them wait."""
LEAST_IN_FLIGHT = 16
AHEAD = 2
"""Requests that a client should send for each that can be judged, so that no judge waits for it."""


CLOSE = {"Connection": "close"}


class TooLarge(Exception):
    """A body beyond MAX_BODY_BYTES."""


def serve_pool(
    table: JudgeTable,
    *,
    socket: Path | None = None,
    listen: str | None = None,
    token: str | None = None,
    gpus: Sequence[Gpu] = (),
) -> None:
    """Judges for whoever connects, on a Unix socket or at HOST:PORT, until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: an address or a path that cannot be served, or no token where one is needed.
        MachineError: the address is taken, or this machine gives no sandbox.
    """
    if (socket is None) == (listen is None):
        raise ConfigError("serve a pool on either a socket or an address")
    opened = bound_path(socket) if socket is not None else bound_address(listen or "", token)
    with opened as listener, open_socket_dir() as folder:
        anyio.run(_serve, table, listener, folder, token, gpus)


async def _serve(
    table: JudgeTable,
    listener: sockets.socket,
    folder: Path,
    token: str | None,
    gpus: Sequence[Gpu],
) -> None:
    async with anyio.create_task_group() as tg:
        tg.start_soon(_cancel_on_signal, tg.cancel_scope)
        async with open_pool(table, socket_dir=folder, log_dir=folder, gpus=gpus) as pool:
            is_local = token is None and listener.family != sockets.AF_UNIX
            served = PoolApp(pool, token=token, is_local=is_local).routes()
            limits = ServerLimits(max_connections=MAX_CONNECTIONS, keep_alive_s=KEEP_ALIVE_S)
            await tg.start(partial(serve_listener, served, listener, limits=limits))
            kinds = ", ".join(
                sorted({f"{one.device}, {one.isolation}" for one in pool.seating.kinds})
            )
            url = url_of(listener)
            sys.stderr.write(
                f'{len(pool.seating.seats)} judges ({kinds}) at [judge] url = ["{url}"]; '
                f"their logs are in {folder}; Ctrl-C ends them\n"
            )
            sys.stderr.flush()
            await anyio.sleep_forever()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
        async for _ in received:
            scope.cancel()


class PoolApp:
    """The routes of a served pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        token: str | None = None,
        is_local: bool = False,
        max_in_flight: int | None = None,
    ) -> None:
        self._pool = pool
        self._token = token
        self._is_local = is_local
        """Whoever reaches it over loopback is served: a browser there may act for a web page."""
        self._max_in_flight = max_in_flight or max(LEAST_IN_FLIGHT, WAITING_PER_JUDGE * self._room)
        self._num_in_flight = 0

    def routes(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        async def health(request: Request) -> Response:
            return self._health(request)

        async def judge(request: Request) -> Response:
            return await self._answer(request, self._judge)

        async def examine(request: Request) -> Response:
            return await self._answer(request, self._examine)

        return Starlette(
            routes=[
                Route("/health", health),
                Route("/judge", judge, methods=["POST"]),
                Route("/examine", examine, methods=["POST"]),
            ]
        )

    @property
    def _room(self) -> int:
        return sum(seat.capacity for seat in self._pool.seating.seats)

    async def _judge(self, body: Any) -> dict[str, Any]:
        problem, code, options = parse_request(body)
        try:
            verdict = await self._pool.judge(
                problem,
                code,
                timing=options.timing,
                profile=options.profile,
                smoke=options.smoke,
            )
        except Stalled as error:
            verdict = Verdict(status=Status.INFRA_ERROR, reason="no_judge", detail=str(error)[:500])
        return verdict.to_json()

    async def _examine(self, body: Any) -> dict[str, Any]:
        return (await self._pool.examine(parse_problem(body))).to_json()

    async def _answer(self, request: Request, handler: Handler) -> Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # what a web page may send without asking us first
            return _refusal(415, "Content-Type: application/json is needed", CLOSE)
        if self._num_in_flight >= self._max_in_flight:
            return self._is_full()
        try:
            with anyio.fail_after(BODY_TIMEOUT_S):
                body = await _read_json(request)
        except TooLarge:
            return _refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes", CLOSE)
        except TimeoutError:
            return _refusal(408, f"the body did not come within {BODY_TIMEOUT_S:.0f} s", CLOSE)
        except BadRequest as error:
            return _refusal(422, str(error))
        if self._num_in_flight >= self._max_in_flight:  # others' bodies came first
            return self._is_full()
        return await self._handled(handler, body)

    async def _handled(self, handler: Handler, body: Any) -> Response:
        from starlette.responses import JSONResponse

        self._num_in_flight += 1
        try:
            return JSONResponse(await handler(body))
        except BadRequest as error:
            return _refusal(422, str(error))
        except (MachineError, Stalled) as error:
            return _refusal(500, str(error))
        finally:
            self._num_in_flight -= 1

    def _is_full(self) -> Response:
        words = f"{self._num_in_flight} requests are in flight, all that are served at once"
        return _refusal(503, words, {"Retry-After": str(RETRY_AFTER_S)})

    def _refused(self, request: Request) -> Response | None:
        """None for who may ask."""
        if self._is_local and not _names_loopback(request.headers.get("Host", "")):
            return _refusal(403, "Host: only a name of this machine's loopback is served", CLOSE)
        if not self._is_allowed(request):
            return _refusal(401, f"a bearer token is needed: that of {TOKEN_VARIABLE} there")
        return None

    def _is_allowed(self, request: Request) -> bool:
        if self._token is None:
            return True
        given = request.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    def _health(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        refused = self._refused(request)
        if refused is not None:
            return refused
        seats, stats = self._pool.seating.seats, self._pool.stats()
        is_ok = any(seat.state in (State.UP, State.SUSPECT) for seat in seats)
        facts = {
            "ok": is_ok,
            "capacity": AHEAD * self._room,
            "in_flight": self._num_in_flight,
            "max_in_flight": self._max_in_flight,
            "queue": stats.queue_length,
            "num_judged": stats.num_judged,
            "num_cached": stats.num_cached,
            "num_infra": stats.num_infra,
            "num_quarantined": stats.num_quarantined,
            "judges": [
                {
                    "name": seat.name,
                    "state": str(seat.state),
                    "device": kind.device,
                    "isolation": kind.isolation,
                    "harness": kind.harness,
                    "busy_s": stats.busy_s[seat.name],
                }
                for seat in seats
                for kind in seat.kinds
            ],
        }
        return JSONResponse(facts, status_code=200 if is_ok else 500)


async def _read_json(request: Request) -> Any:
    """Raises TooLarge, without having held more, or BadRequest."""
    body, num_bytes = bytearray(), 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= MAX_BODY_BYTES:
            body += chunk
        elif num_bytes > MAX_DRAINED_BYTES:
            break
    if num_bytes > MAX_BODY_BYTES:
        raise TooLarge
    try:
        if len(body) <= PARSED_ON_LOOP_BYTES:
            return json.loads(body)
        return await anyio.to_thread.run_sync(json.loads, bytes(body))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"body: no JSON: {error}") from error


def _names_loopback(host: str) -> bool:
    """Of a Host header. A web page's own name can be made to lead here."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _refusal(status: int, words: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": words}, status_code=status, headers=headers)
