# pyright: strict
"""One `generate` over several servers of one model.

`Served` is the base of `replicas.Replicas` (engines of this run) and of `remote.Remote` (servers
behind URLs); `Server` is what it needs of each. Promise: a request that is lost with its server, or
that a server does not answer in time, is sent to another one; one answer is returned and counted.

    choose ─▶ send ──answered──▶ counted
                └─ hung up, failed or timed out ─▶ choose again, another server where one is up
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from forge.errors import ChildDied, MachineError, Stalled
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
            server = await self._choose(prompt.ids, avoided=failed)
            try:
                with _counted(server, n):
                    completions = await server.complete(request)
            except (ChildDied, MachineError, Stalled) as error:
                if not isinstance(error, ChildDied):
                    failed.append(server)  # a failing engine answers so just before it restarts
                others = any(each.is_up and each not in failed for each in self._servers)
                if number == ATTEMPTS - 1 or (isinstance(error, Stalled) and not others):
                    raise
                logger.warning("%s; sending it again", error)
                await anyio.sleep(RETRY_PAUSE_S)
            else:
                server.generated_tokens += sum(len(each.token_ids) for each in completions)
                return completions
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
        return up[self.router.choose(loads, prompt_ids)]


@contextmanager
def _counted(server: Server, n: int) -> Generator[None]:
    """Count `n` samples as the server's load. Begins with the choice, so that requests of the same
    moment do not all choose the same server."""
    server.load += n
    try:
        yield
    finally:
        server.load -= n
