# pyright: strict
"""Servers behind URLs that take the weights of this run: `[serve] url` in a run that trains.

Opened by the runner. The servers are `forge serve --weights` of this version of forge. Promises:
a server is asked only while it has the weights that this run published last; one that was started
again gets them before the next request; one that another run took ends this run with a line.

    claim ─▶ send weights ─▶ up ──hung up──▶ answers again ─▶ up
                ▲             └──claim lost (started again)──▶ claim
                └─────────────── publish
"""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.serve.port import SLEEP
from forge.serve.publishing import Publishing
from forge.serve.remote.discovery import SPLIT_ME, discover
from forge.serve.remote.openai_wire import Dialect
from forge.serve.remote.remote import WAIT_S, ChatPort, RemoteServer, open_client_of
from forge.serve.remote.url_client import OtherWeights
from forge.serve.upload.manifest import Digests
from forge.serve.upload.sender import LostClaim, WeightSender

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from forge.config.schema import ServeTable
    from forge.records import Completion
    from forge.serve.remote.discovery import RemoteModel
    from forge.serve.remote.url_client import UrlClient
    from forge.serve.served import SampleRequest
    from forge.serve.weights import Weights

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Interval of /health, which also keeps the claim."""


class WeightTaker(RemoteServer):
    """One URL whose weights change."""

    def __init__(
        self, client: UrlClient, found: RemoteModel, sender: WeightSender, *, chat: ChatPort,
        weights: Weights, on_up: Callable[[], None],
    ) -> None:  # fmt: skip
        """Nothing is sent yet."""
        super().__init__(client, found, chat=chat)
        self._has_versions = True
        self.is_draining = False
        self.health: dict[str, Any] = {}
        self.features = frozenset(map(str, sender.facts["features"])) - {SLEEP}
        self.wanted = weights
        self.sender = sender
        self._served: Weights | None = None
        self._sending = anyio.Lock()
        self._on_up = on_up

    @property
    def is_up(self) -> bool:
        """True if it answered the last request, has the wanted weights and is not draining."""
        return self.client.is_up and self._served == self.wanted and not self.is_draining

    async def wake(self) -> None:
        """Nothing: these engines never sleep."""

    def doubt(self) -> None:
        """Distrust what the server acknowledged."""
        self._served = None

    async def serve(self, weights: Weights, *, timeout_s: float) -> None:
        """Return once the server has these weights. The time begins again with each piece of a file
        that it takes, so `WeightSender` limits it, not `timeout_s`."""
        self.wanted = weights
        await self.send()

    async def send(self) -> None:
        """Have the wanted weights served, and again if `wanted` changes meanwhile. Raises as
        `WeightSender.claim` and `WeightSender.serve`."""
        async with self._sending:
            while (wanted := self.wanted) != (served := self._served):
                self._served = None  # a failed load may be half done
                began = time.monotonic()
                try:
                    await self.sender.serve(wanted)
                except LostClaim as error:
                    logger.warning("%s; claiming it again", error)
                    await self.sender.claim()
                    continue
                except ConfigError:
                    self._served = served  # refused: the old weights are still served
                    raise
                seconds = time.monotonic() - began
                logger.info("%s serves version %d (%.3f s)", self.name, wanted.version, seconds)
                self._served = wanted
        self._on_up()

    async def scores(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, timeout_s: float
    ) -> list[list[float]]:
        """Log probabilities from each engine of the server."""
        body = {"prompt_ids": list(prompt_ids), "completion_ids": list(completion_ids)}
        while True:
            await self.send()
            try:
                return await self.sender.scores(body)
            except LostClaim as error:
                logger.warning("%s", error)
                self._served = None

    async def complete(self, request: SampleRequest) -> list[Completion]:
        """Sample. Raises OtherWeights if the server was started again, which `watch` repairs."""
        try:
            return await super().complete(request)
        except OtherWeights:
            self._served = None
            raise

    async def watch(self) -> None:
        """Keep `health` fresh and the weights there, until cancelled. Raises MachineError if
        another run publishes there now."""
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            was_up = self.client.is_up
            try:
                self.health = await self.client.json("GET", "/health") or {}
                self.client.is_up = True
            except OtherWeights:
                self._served = None
            except (ChildDied, Stalled) as error:
                self.health = {}
                logger.debug("%s", error)
                continue
            if not was_up:
                self.num_deaths += 1
                logger.warning("%s answers again", self.name)
            if self._served != self.wanted and not self._sending.locked():
                await self._send_again()
            elif not was_up:
                self._on_up()

    async def _send_again(self) -> None:
        try:
            await self.send()
        except (ChildDied, Stalled) as error:
            logger.warning("%s", error)


class RemoteReplicas(Publishing[WeightTaker]):
    """The servers of a run that trains. Made by `open_takers`."""

    def __init__(self, servers: Sequence[WeightTaker], *, table: ServeTable, weights: Weights,
                 stop_token_ids: Sequence[int]) -> None:  # fmt: skip
        super().__init__(
            servers, weights=weights, stop_token_ids=stop_token_ids, slots=table.slots,
            request_timeout_s=table.request_timeout_s, through_restart_s=table.request_timeout_s,
            wait_s=max(WAIT_S, table.request_timeout_s),
        )  # fmt: skip

    @property
    def servers(self) -> tuple[WeightTaker, ...]:
        """The servers, under the name that `Remote` has for them."""
        return self.all


@asynccontextmanager
async def open_takers(
    table: ServeTable, *, weights: Weights, chat: ChatPort, owner: str, forge: str
) -> AsyncGenerator[RemoteReplicas]:
    """Claim every URL of the table and have `weights` served there; keep both until the context
    ends.

    Args:
        owner: the run, for messages of the servers; the same after `forge resume`.
        forge: version of forge here.

    Raises:
        ConfigError: a server accepts no weights or no such token, has another version of forge or
            other settings, or refuses the weights.
        MachineError: none answers, another run publishes there, or its disk is full.
    """
    digests = Digests()
    servers: list[WeightTaker] = []
    async with AsyncExitStack() as opened:
        replicas: RemoteReplicas | None = None

        def note_up(server: int) -> None:
            if replicas is not None:
                replicas.router.forget_prefixes(servers[server].name)
                replicas.note_up()

        for index, url in enumerate(table.url):
            client, http = await opened.enter_async_context(open_client_of(table, url))
            sender = WeightSender(
                url, http, owner=owner, forge=forge, digests=digests,
                patience_s=table.request_timeout_s,
            )  # fmt: skip
            await _claim(sender, table)
            opened.push_async_callback(sender.release)
            found = await discover(
                client, split_ids=chat.encode_plain(SPLIT_ME), model_name=table.model_name,
                stop_token_ids=chat.stop_token_ids,
            )  # fmt: skip
            assert found.dialect is Dialect.FORGE
            taker = WeightTaker(
                client, found, sender, chat=chat, weights=weights, on_up=partial(note_up, index)
            )
            servers.append(taker)
        replicas = RemoteReplicas(
            servers, table=table, weights=weights, stop_token_ids=chat.stop_token_ids
        )
        await _send_first(replicas, weights)
        tasks = await opened.enter_async_context(anyio.create_task_group())
        for server in servers:
            tasks.start_soon(server.watch)
        try:
            yield replicas
        finally:
            tasks.cancel_scope.cancel()


async def check_takers(table: ServeTable, *, owner: str, forge: str) -> None:
    """Raise as `open_takers` if a server would not take this run's weights; leaves no claim."""
    async with AsyncExitStack() as opened:
        for url in table.url:
            _, http = await opened.enter_async_context(open_client_of(table, url))
            sender = WeightSender(
                url, http, owner=owner, forge=forge, digests=Digests(),
                patience_s=table.request_timeout_s,
            )  # fmt: skip
            await _claim(sender, table)
            await sender.release()


async def _claim(sender: WeightSender, table: ServeTable) -> None:
    try:
        await sender.claim()
    except (ChildDied, Stalled) as error:
        raise MachineError(f"serve.url: no engine answers: {error}") from error
    there = sender.facts
    if there["precision"] != table.precision:
        raise ConfigError(
            f'serve.precision: found "{table.precision}"; {sender.url} serves "'
            f'{there["precision"]}": set the same on both'
        )
    if there["context_tokens"] < table.context_tokens:
        raise ConfigError(
            f"serve.context_tokens: found {table.context_tokens}; {sender.url} serves "
            f"{there['context_tokens']}: set as many there, or fewer here"
        )


async def _send_first(replicas: RemoteReplicas, weights: Weights) -> None:
    """Have the first weights served; a failure is an error of its kind, without an attempt to serve
    what was there before."""
    failures: list[ForgeError] = []

    async def one(server: WeightTaker) -> None:
        try:
            await server.send()
        except ForgeError as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        for server in replicas.all:
            group.start_soon(one, server)
    if failures:
        raise failures[0]
