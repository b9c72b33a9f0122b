"""The model as whoever asks it sees it: one `generate` over several servers.

Base of `replicas.Replicas` (engines of this run) and of `remote.Remote` (servers behind URLs).
Promises: a request that was lost with a server, or that one keeps while others answer, is asked
elsewhere; whatever was asked how often, an answer is given once and counted once.

    choose ─▶ ask ──answered────────────────────────────▶ counted, whoever else was asked hangs up
               ├─ silent while others answer ─▶ ask another one too: the first answer wins
               └─ hung up, failed or silent for good ─▶ choose again, another one where one is up
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.serve.router import ReplicaLoad, Router
from forge.serve.stats import EngineLoad, ServeStats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from forge.records import Completion
    from forge.serve.server import Server

logger = logging.getLogger(__name__)

ATTEMPTS = 4
"""Of one request, over servers and restarts."""
RETRY_PAUSE_S = 0.3
"""A dying child hangs up before the kernel says that it is dead."""
WATCH_EVERY_S = 0.5
"""Between two looks whether a request takes too long."""


@dataclass(slots=True, kw_only=True)
class _Asked:
    """One request, and what became of it at each server."""

    prompt_ids: Sequence[int]
    n: int
    max_tokens: int
    temperature: float
    seed: int
    answer: list[Completion] | None = None
    errors: list[ForgeError] = field(default_factory=list)
    by: list[Server] = field(default_factory=list)
    """Who was asked, in order."""


class Served(ABC):
    """Servers that answer for one model."""

    def __init__(
        self, servers: Sequence[Server], *, stop_token_ids: Sequence[int], slots: int, wait_s: float
    ) -> None:
        """`wait_s`: until one must be up. `slots`: what each decodes together."""
        self._servers = list(servers)
        self._stop_token_ids = tuple(stop_token_ids)
        self._slots = slots
        self._wait_s = wait_s
        self._came_up = anyio.Event()
        self._go_on = anyio.Event()
        self._go_on.set()
        self._answered_at: dict[str, float] = {}
        self.router = Router()

    # -- what the runner asks --------------------------------------------------------------------

    @property
    @abstractmethod
    def version(self) -> int:
        """Policy version that all of them serve."""

    @property
    @abstractmethod
    def features(self) -> frozenset[str]:
        """What all of them can do; names are those of `forge.serve.port`."""

    @abstractmethod
    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        """Serve the weights of a directory everywhere, as `version`. Raises ConfigError where that
        is not possible."""

    @abstractmethod
    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        """What each server thinks of the same tokens: log probabilities, in the order of their
        names."""

    @abstractmethod
    async def sleep(self) -> None:
        """Give GPU memory away, where they can. Requests wait for `wake`."""

    @abstractmethod
    async def wake(self) -> None:
        """Take it back."""

    def load(self) -> EngineLoad | None:
        """Their own numbers; None where they tell none."""
        return None

    def stats(self) -> ServeStats:
        """Counters as of now."""
        servers, slots = self._servers, self._slots
        return ServeStats(
            generated_tokens=sum(each.generated_tokens for each in servers),
            busy_s=sum(each.busy_s for each in servers),
            running=sum(min(each.load, slots) for each in servers),
            waiting=sum(max(each.load - slots, 0) for each in servers),
            num_replicas=len(servers),
            num_restarts=sum(each.num_deaths for each in servers),
        )

    # -- asking ----------------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], *, n: int, max_tokens: int, temperature: float, seed: int
    ) -> list[Completion]:
        """Sample `n` continuations on one server, so that the prompt is evaluated once.

        Raises ChildDied, Stalled, MachineError where none could answer; ConfigError where one
        refused.
        """
        failed: list[Server] = []
        for attempt in range(ATTEMPTS):
            asked = _Asked(
                prompt_ids=prompt_ids, n=n, max_tokens=max_tokens, temperature=temperature,
                seed=seed,
            )  # fmt: skip
            first = await self._choose(prompt_ids, rather_not=failed)
            with _loaded(first, n):
                await self._ask(asked, first)
            if asked.answer is not None:
                return asked.answer
            error = asked.errors[-1]
            if isinstance(error, MachineError):
                failed += asked.by  # answers that it cannot, just before it ends to be restarted
            is_lost = isinstance(error, ChildDied | MachineError)
            is_lost = is_lost or self._may_go_elsewhere(error, asked)
            if attempt == ATTEMPTS - 1 or not is_lost:
                raise error
            logger.warning("%s; asking again", error)
            await anyio.sleep(RETRY_PAUSE_S)
        raise AssertionError("the loop returns or raises")

    @asynccontextmanager
    async def seated(self, prompt_ids: Sequence[int], *, n: int) -> AsyncIterator[Server]:
        """The server to ask for one request, counted as its load while inside. For who speaks to
        it himself."""
        server = await self._choose(prompt_ids)
        with _loaded(server, n):
            yield server

    def note_up(self) -> None:
        """Called when a server may be asked (again)."""
        self._came_up.set()
        self._came_up = anyio.Event()

    def hold(self) -> None:
        """Requests wait, without a deadline of ours, until `release`."""
        if self._go_on.is_set():
            self._go_on = anyio.Event()

    def release(self) -> None:
        """Requests go on."""
        self._go_on.set()

    async def _choose(
        self, prompt_ids: Sequence[int], *, rather_not: Sequence[Server] = ()
    ) -> Server:
        """`rather_not`: asked only where no other one is up."""
        await self._go_on.wait()
        with anyio.move_on_after(self._wait_s):
            while not (up := [each for each in self._servers if each.is_up]):
                await self._came_up.wait()
            others = [each for each in up if each not in rather_not]
            return self._chosen(others or up, prompt_ids)
        names = ", ".join(each.name for each in self._servers)
        raise Stalled(f"no replica came up within {self._wait_s:.0f} s; waited for: {names}")

    def _chosen(self, up: Sequence[Server], prompt_ids: Sequence[int]) -> Server:
        if len(self._servers) == 1:
            return up[0]
        loads = [ReplicaLoad(name=each.name, samples=each.load, slots=self._slots) for each in up]
        return up[self.router.choose(loads, prompt_ids, now=time.monotonic())]

    async def _ask(self, asked: _Asked, first: Server) -> None:
        """Fills `asked`: with the first answer, or with the errors of all who were asked."""
        if len(self._servers) == 1:
            return await self._ask_one(asked, first, others=None)
        async with anyio.create_task_group() as others:
            others.start_soon(partial(self._ask_one, asked, first, others=others.cancel_scope))
            if (second := await self._wait_for_silence(asked, first)) is not None:
                with _loaded(second, asked.n):
                    await self._ask_one(asked, second, others=others.cancel_scope)

    async def _ask_one(
        self, asked: _Asked, server: Server, *, others: anyio.CancelScope | None
    ) -> None:
        """Ask one; who answers first ends the others."""
        asked.by.append(server)
        began = time.monotonic()
        try:
            completions = await server.complete(
                asked.prompt_ids,
                n=asked.n,
                max_tokens=asked.max_tokens,
                temperature=asked.temperature,
                seed=asked.seed,
                stop_token_ids=self._stop_token_ids,
            )
        except ForgeError as error:
            asked.errors.append(error)
            is_last = len(asked.errors) == len(asked.by)
        else:
            if asked.answer is not None:
                return  # both in one turn of the loop: the first one is counted
            asked.answer, is_last = completions, True
            lengths = [len(each.token_ids) for each in completions]
            server.generated_tokens += sum(lengths)
            now = time.monotonic()
            self._answered_at[server.name] = now
            self.router.answered(server.name, seconds=now - began, num_tokens=max(lengths))
        if is_last and others is not None:
            others.cancel()

    async def _wait_for_silence(self, asked: _Asked, first: Server) -> Server | None:
        """Returns whom to ask too, once `first` has been silent for too long while another one
        answered. Cancelled by an answer.
        """
        began = time.monotonic()
        while True:
            await anyio.sleep(WATCH_EVERY_S)
            now = time.monotonic()
            patience_s = self.router.patience_s(asked.max_tokens)
            if patience_s is None or now - began < patience_s or not self._is_silent(first, began):
                continue
            up = [each for each in self._servers if each.is_up and each is not first]
            if up:
                logger.warning(
                    "%s has been silent for %.1f s while others answered; another is asked too",
                    first.name, now - began,
                )  # fmt: skip
                self.router.was_silent(first.name, now=now)
                return self._chosen(up, asked.prompt_ids)

    def _is_silent(self, server: Server, since: float) -> bool:
        """Whether others have answered since, and it has not."""
        answered = {name for name, at in self._answered_at.items() if at > since}
        return bool(answered) and server.name not in answered

    def _may_go_elsewhere(self, error: ForgeError, asked: _Asked) -> bool:
        """Whether who was silent to the end leaves another one to ask."""
        if not isinstance(error, Stalled):
            return False
        for server in asked.by:
            self.router.was_silent(server.name, now=time.monotonic())
        return any(each.is_up and each not in asked.by for each in self._servers)


@contextmanager
def _loaded(server: Server, n: int) -> Iterator[None]:
    """From the choice on, so that requests of the same moment do not all choose the same one."""
    server.load += n
    try:
        yield
    finally:
        server.load -= n


def not_changeable(where: str) -> ConfigError:
    """The error of a publish to servers whose weights are not ours."""
    return ConfigError(f"{where}: its weights cannot be changed, so nothing can be trained there")
