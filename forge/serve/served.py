# pyright: strict
"""One `generate` over several servers of one model.

`Served` is the base of `replicas.Replicas` (engines of this run) and of `remote.Remote` (servers
behind URLs); `Server` is what it needs of each. Promises: a request that is lost with its server,
or that one server holds back while others answer, is sent to another one; however often a request
was sent, one answer is returned and counted.

    choose ─▶ send ──answered─────────────────────────▶ counted; the request is cancelled elsewhere
               ├─ silent while others answer ─▶ send to another one too: the first answer wins
               └─ hung up, failed or timed out ─▶ choose again, another server where one is up
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

from forge.errors import ChildDied, ForgeError, MachineError, Stalled
from forge.serve.router import ReplicaLoad, Router

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from forge.process.busy import BusyClock
    from forge.records import Completion, EngineLoad, Prompt

logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""Maximum attempts at one request, over servers and restarts."""
RETRY_PAUSE_S = 0.3
"""Pause before the next attempt: a dying child hangs up before the kernel reports its death."""
WATCH_EVERY_S = 0.5
"""Interval between two checks for a request that takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStats:
    """Sums over the servers since they were opened. Only `running` and `waiting` can fall."""

    generated_tokens: int
    busy_s: float
    """Seconds with a request in progress, summed: divide by num_replicas for a share."""
    running: int
    """Samples in slots."""
    waiting: int
    """Samples without a slot."""
    num_replicas: int
    num_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One request for samples."""

    prompt: Prompt
    n: int
    max_tokens: int
    temperature: float
    seed: int
    stop_token_ids: Sequence[int]


class Server(Protocol):
    """A server that answers requests: `replica.Replica` or `remote.RemoteServer`."""

    name: str
    load: int
    """Samples requested and not answered; `Served` counts them."""
    generated_tokens: int
    """Tokens in the answers that were used."""
    num_deaths: int
    busy: BusyClock

    @property
    def is_up(self) -> bool:
        """True if it accepts requests."""
        ...

    async def complete(self, request: SampleRequest) -> list[Completion]:
        """Sample. Cancellation aborts them on the server. Raises ForgeError."""
        ...


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One request and its outcome at each server that got it."""

    request: SampleRequest
    answer: list[Completion] | None = None
    errors: list[ForgeError] = field(default_factory=list[ForgeError])
    servers: list[Server] = field(default_factory=list[Server])
    """Servers that got the request, in order."""


class Served:
    """Servers that answer for one model."""

    def __init__(
        self, servers: Sequence[Server], *, stop_token_ids: Sequence[int], slots: int, wait_s: float
    ) -> None:
        """No server needs to be up yet. `slots`: samples that each decodes together; `wait_s`:
        maximum wait for any to be up."""
        self._servers = list(servers)
        self._stop_token_ids = tuple(stop_token_ids)
        self._slots = slots
        self._wait_s = wait_s
        self._came_up = anyio.Event()
        self._released = anyio.Event()
        self._released.set()
        self._answered_at: dict[str, float] = {}
        self.router = Router()

    def load(self) -> EngineLoad | None:
        """The engines' own numbers; None if they report none."""
        return None

    def stats(self) -> ServeStats:
        """Counters as of now."""
        servers, slots = self._servers, self._slots
        return ServeStats(
            generated_tokens=sum(each.generated_tokens for each in servers),
            busy_s=sum(each.busy.busy_s for each in servers),
            running=sum(min(each.load, slots) for each in servers),
            waiting=sum(max(each.load - slots, 0) for each in servers),
            num_replicas=len(servers),
            num_restarts=sum(each.num_deaths for each in servers),
        )

    # -- requests --------------------------------------------------------------------------------

    async def generate(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        """Sample `n` continuations on one server, so that the prompt is evaluated once.

        Raises:
            ChildDied, Stalled, MachineError: no server could answer.
            ConfigError: a server refused the request.
        """
        request = SampleRequest(
            prompt=prompt, n=n, max_tokens=max_tokens, temperature=temperature, seed=seed,
            stop_token_ids=self._stop_token_ids,
        )  # fmt: skip
        failed: list[Server] = []
        for number in range(ATTEMPTS):
            attempt = _Attempt(request=request)
            first = await self._choose(prompt.ids, avoided=failed)
            with _counted(first, n):
                await self._send(attempt, first)
            if attempt.answer is not None:
                return attempt.answer
            error = attempt.errors[-1]
            if isinstance(error, MachineError):
                failed += attempt.servers  # a failing engine answers so just before it restarts
            is_lost = isinstance(error, ChildDied | MachineError)
            if number == ATTEMPTS - 1 or not (is_lost or self._has_alternative(error, attempt)):
                raise error
            logger.warning("%s; sending it again", error)
            await anyio.sleep(RETRY_PAUSE_S)
        raise AssertionError("the loop returns or raises")

    @asynccontextmanager
    async def seated(self, prompt_ids: Sequence[int], *, n: int) -> AsyncGenerator[Server]:
        """Choose the server for a request that the caller sends itself, and count its load while
        inside."""
        server = await self._choose(prompt_ids)
        with _counted(server, n):
            yield server

    def note_up(self) -> None:
        """Wake requests that wait for a server. Call it when one is up (again)."""
        self._came_up.set()
        self._came_up = anyio.Event()

    def hold(self) -> None:
        """Let new requests wait, without a deadline, until `release`."""
        if self._released.is_set():
            self._released = anyio.Event()

    def release(self) -> None:
        """Let requests continue."""
        self._released.set()

    async def _choose(self, prompt_ids: Sequence[int], *, avoided: Sequence[Server] = ()) -> Server:
        """The server for a request, one of `avoided` only if no other is up."""
        await self._released.wait()
        with anyio.move_on_after(self._wait_s):
            while not (up := [each for each in self._servers if each.is_up]):
                await self._came_up.wait()
            others = [each for each in up if each not in avoided]
            return self._route(others or up, prompt_ids)
        names = ", ".join(each.name for each in self._servers)
        raise Stalled(f"no replica came up within {self._wait_s:.0f} s; waited for: {names}")

    def _route(self, up: Sequence[Server], prompt_ids: Sequence[int]) -> Server:
        if len(self._servers) == 1:
            return up[0]
        loads = [ReplicaLoad(name=each.name, samples=each.load, slots=self._slots) for each in up]
        return up[self.router.choose(loads, prompt_ids, now=anyio.current_time())]

    async def _send(self, attempt: _Attempt, first: Server) -> None:
        """Fill `attempt` with the first answer, or with the errors of all servers that got it."""
        if len(self._servers) == 1:
            return await self._send_to(attempt, first, others=None)
        async with anyio.create_task_group() as others:
            others.start_soon(partial(self._send_to, attempt, first, others=others.cancel_scope))
            if (second := await self._wait_for_silence(attempt, first)) is not None:
                with _counted(second, attempt.request.n):
                    await self._send_to(attempt, second, others=others.cancel_scope)

    async def _send_to(
        self, attempt: _Attempt, server: Server, *, others: anyio.CancelScope | None
    ) -> None:
        """Send to one server; the first answer cancels the request at the others."""
        attempt.servers.append(server)
        began = anyio.current_time()
        try:
            completions = await server.complete(attempt.request)
        except ForgeError as error:
            attempt.errors.append(error)
            is_last = len(attempt.errors) == len(attempt.servers)
        else:
            if attempt.answer is not None:
                return  # both answers in one turn of the loop: only the first one counts
            attempt.answer, is_last = completions, True
            lengths = [len(each.token_ids) for each in completions]
            server.generated_tokens += sum(lengths)
            now = anyio.current_time()
            self._answered_at[server.name] = now
            self.router.answered(server.name, seconds=now - began, num_tokens=max(lengths))
        if is_last and others is not None:
            others.cancel()

    async def _wait_for_silence(self, attempt: _Attempt, first: Server) -> Server | None:
        """A second server for the request, once `first` was silent for too long while another one
        answered. Cancelled by an answer."""
        began, pause_s = anyio.current_time(), WATCH_EVERY_S
        while True:
            await anyio.sleep(pause_s)
            now = anyio.current_time()
            patience_s = self.router.patience_s(attempt.request.max_tokens)
            # Thousands wait here at once: half of the rest, as patience may become less.
            pause_s = max(WATCH_EVERY_S, ((patience_s or 0.0) - (now - began)) / 2)
            if patience_s is None or now - began < patience_s or not self._is_silent(first, began):
                continue
            up = [each for each in self._servers if each.is_up and each is not first]
            if up:
                logger.warning(
                    "%s was silent for %.1f s while others answered; asking another one too",
                    first.name, now - began,
                )  # fmt: skip
                self.router.was_silent(first.name, now=now)
                return self._route(up, attempt.request.prompt.ids)

    def _is_silent(self, server: Server, since: float) -> bool:
        """True if another server has answered since, and this one has not."""
        answered = {name for name, at in self._answered_at.items() if at > since}
        return bool(answered) and server.name not in answered

    def _has_alternative(self, error: ForgeError, attempt: _Attempt) -> bool:
        """True if the request timed out, and a server that did not get it is up."""
        if not isinstance(error, Stalled):
            return False
        for server in attempt.servers:
            self.router.was_silent(server.name, now=anyio.current_time())
        return any(each.is_up and each not in attempt.servers for each in self._servers)


@contextmanager
def _counted(server: Server, n: int) -> Generator[None]:
    """Count `n` samples as the server's load. Begins with the choice, so that requests of the same
    moment do not all choose the same server."""
    server.load += n
    try:
        yield
    finally:
        server.load -= n
