# pyright: strict
"""One `generate` over several servers of one model, and the choice of the server for each request.

A prompt goes to the server that evaluated its longest prefix, unless that one is much busier;
otherwise to the first of the least loaded. A slow one answers later, so its load stays and it gets
fewer requests. Promise: a request that is lost with its server, or that a server does not answer in
time, is sent to another one; one answer is returned and counted.

    choose ─▶ send ──answered──▶ counted
                └─ hung up, failed or timed out ─▶ choose again, another server where one is up
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from forge.errors import ChildDied, MachineError, Stalled
from forge.process.busy import BusyClock
from forge.records import Completion, EngineLoad, Prompt

BLOCK_TOKENS = 64
"""Prefixes are compared in blocks of this many tokens."""
MAX_BLOCKS = 65_536
"""Blocks remembered over all replicas: 4 M tokens, the most that KV caches of a machine hold."""
SPILL = 1.25
"""A prompt leaves the replica with its prefix if that is this many times as busy as another..."""
SPILL_SLOTS = 8
"""...and by more than 1 / SPILL_SLOTS of its slots: below that a step takes as long."""


@dataclass(slots=True, kw_only=True)
class Router:
    slots: int
    has_prefix_cache: bool = False
    """True if the engine reuses evaluated prefixes for later prompts."""
    _blocks: OrderedDict[int, set[str]] = field(default_factory=OrderedDict[int, set[str]])
    """Replicas that evaluated a prefix, by the hash of its blocks. Least recently used first."""

    def choose(self, up: Sequence[Server], prompt_ids: Sequence[int]) -> Server:
        """The server to ask. It counts as having evaluated the prompt."""
        least = min(up, key=lambda each: each.load)
        if not self.has_prefix_cache:
            return least
        blocks = _hash_blocks(prompt_ids)
        near = [each for each in up if not self._is_spilling(each.load, least.load)]
        chosen = max(near, key=lambda each: (self._num_known(each.name, blocks), -each.load))
        for block in blocks:
            self._blocks.setdefault(block, set()).add(chosen.name)
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)
        return chosen

    def _is_spilling(self, load: int, least: int) -> bool:
        """True if a server is too busy for what its cache would save."""
        return load + 1 > SPILL * (least + 1) and load - least > self.slots / SPILL_SLOTS

    def forget(self, name: str) -> None:
        """Forget what a replica evaluated: it serves other weights now, or is another process. A
        block that no other one has goes, too: a run with one replica would keep 65,536 of them, 26
        MB."""
        for names in self._blocks.values():
            names.discard(name)
        for block in [block for block, names in self._blocks.items() if not names]:
            del self._blocks[block]

    def _num_known(self, name: str, blocks: Sequence[int]) -> int:
        for count, block in enumerate(blocks):
            if name not in self._blocks.get(block, ()):
                return count
        return len(blocks)


def _hash_blocks(prompt_ids: Sequence[int]) -> list[int]:
    """A number per prefix of whole blocks; equal prefixes have equal numbers."""
    found: list[int] = []
    before = 0
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = hash((before, *prompt_ids[start : start + BLOCK_TOKENS]))
        found.append(before)
    return found


logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""Maximum attempts at one request, over servers and restarts."""
RETRY_PAUSE_S = 0.3
"""Pause before the next attempt: a dying child hangs up before the kernel reports its death."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStats:
    generated_tokens: int
    busy_s: float
    """Seconds with a request in progress, summed: divide by num_replicas for a share."""
    num_replicas: int
    num_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
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
    def is_up(self) -> bool: ...

    async def complete(self, request: SampleRequest) -> list[Completion]:
        """Sample. Cancellation aborts them on the server. Raises ForgeError."""
        ...


class Served:
    def __init__(
        self, servers: Sequence[Server], *, stop_token_ids: Sequence[int], slots: int, wait_s: float
    ) -> None:
        """No server needs to be up yet. `slots`: samples that each decodes together; `wait_s`:
        maximum wait for any to be up."""
        self._servers, self._stop_token_ids = list(servers), tuple(stop_token_ids)
        self._slots, self._wait_s = slots, wait_s
        self._came_up = anyio.Event()
        self._released = anyio.Event()
        self._released.set()
        self.router = Router(slots=slots)

    def load(self) -> EngineLoad | None:
        """The engines' own numbers; None if they report none."""
        return None

    def stats(self) -> ServeStats:
        servers = self._servers
        return ServeStats(
            generated_tokens=sum(each.generated_tokens for each in servers),
            busy_s=sum(each.busy.busy_s for each in servers),
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
        self._released.set()

    async def _choose(self, prompt_ids: Sequence[int], *, avoided: Sequence[Server] = ()) -> Server:
        """The server for a request, one of `avoided` only if no other is up."""
        await self._released.wait()
        with anyio.move_on_after(self._wait_s):
            while not (up := [each for each in self._servers if each.is_up]):
                await self._came_up.wait()
            near = [each for each in up if each not in avoided] or up
            return near[0] if len(self._servers) == 1 else self.router.choose(near, prompt_ids)
        names = ", ".join(each.name for each in self._servers)
        raise Stalled(f"no replica came up within {self._wait_s:.0f} s; waited for: {names}")


@contextmanager
def _counted(server: Server, n: int) -> Generator[None]:
    """Count `n` samples as the server's load. Begins with the choice, so that requests of the same
    moment do not all choose the same server."""
    server.load += n
    try:
        yield
    finally:
        server.load -= n
