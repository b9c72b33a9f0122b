# pyright: strict
"""Running servers in place of replicas: `[serve] url`.

Opened by the runner for evaluations and searches. Promises: a server's dialect is found before
anything is sampled, and reported; a server that hung up or was silent gets no request until it
answers again. Not promised: that it serves the model of `[model]`.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

from forge.errors import ChildDied, ForgeError, MachineError, Stalled
from forge.process.ask import parse_content
from forge.process.busy import BusyClock
from forge.serve.remote.dialects import (
    PATHS,
    Dialect,
    RemoteModel,
    discover,
    read_answer,
    request_body,
)
from forge.serve.remote.url_client import UrlClient, open_server
from forge.serve.served import SampleRequest, Served
from forge.serve.wire import COMPACT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from forge.config.schema import ServeTable
    from forge.records import Completion

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 2.0
"""Interval of checks whether a server that hung up or was silent answers again."""
ATTEMPTS = 6
"""Maximum attempts at a request to a server that chats and fails."""
FIRST_PAUSE_S = 1.0
"""Pause before the second attempt. It doubles: 31 s of pauses over all attempts."""
WAIT_S = 120.0
"""Maximum wait for any server to be up."""


class ChatPort(Protocol):
    """The tokenizer of the experiment: encodes texts of a server that returns no token ids."""

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """Stop tokens. The first one is appended to an answer that the model ended."""
        ...


class RemoteServer:
    """One URL, as a server of `Served`."""

    def __init__(
        self, client: UrlClient, found: RemoteModel, *, chat: ChatPort, thinking: str = "think"
    ) -> None:
        self.name = client.url
        self.load = 0
        self.generated_tokens = 0
        self.num_deaths = 0
        self.found = found
        self.client = client
        self._chat = chat
        self._thinking = thinking
        self.busy = BusyClock()

    @property
    def is_up(self) -> bool:
        """True if it answered the last request."""
        return self.client.is_up

    async def complete(self, request: SampleRequest) -> list[Completion]:
        """Sample. CHAT sends n requests, since few such servers accept n."""
        with self.busy.running():
            if self.found.dialect is Dialect.CHAT:
                return await self._ask_singly(request)
            return await self._ask(request)

    async def _ask_singly(self, request: SampleRequest) -> list[Completion]:
        answers: dict[int, Completion] = {}
        failures: list[ForgeError] = []

        async def one(index: int) -> None:
            try:
                single = replace(request, n=1, seed=request.seed + index)
                (answers[index],) = await self._ask_again(single)
            except ForgeError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index in range(request.n):
                group.start_soon(one, index)
        if failures:
            raise failures[0]
        return [answers[index] for index in range(request.n)]

    async def _ask_again(self, request: SampleRequest) -> list[Completion]:
        """Ask a server that chats up to ATTEMPTS times: a hosted one fails now and then, and
        answers what cannot be read."""
        pause_s = FIRST_PAUSE_S
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._ask(request)
            except MachineError as error:
                logger.warning("%s; sending it again in %g s", error, pause_s)
            await anyio.sleep(pause_s)
            pause_s *= 2
        return await self._ask(request)

    async def _ask(self, request: SampleRequest) -> list[Completion]:
        """Raises ConfigError if it refuses, MachineError if it fails, ChildDied, Stalled."""
        dialect = self.found.dialect
        content = await self.client.post_limited(
            PATHS[dialect],
            request_body(request, dialect, model=self.found.model),
            accept=COMPACT if dialect is Dialect.FORGE else "",
        )
        parse = partial(
            read_answer,
            dialect=dialect,
            n=request.n,
            encode=self._encode_answer,
            thinking=self._thinking,
        )
        try:
            if dialect is Dialect.CHAT:
                return parse(content)  # a tokenizer belongs to the loop's thread
            return await parse_content(content, parse)
        except MachineError as error:
            raise MachineError(f"{self.name}: {error}") from error

    def _encode_answer(self, text: str, is_ended: bool) -> list[int]:
        end = [self._chat.stop_token_ids[0]] if is_ended else []
        return [*self._chat.encode_plain(text), *end]


class Remote(Served):
    """Servers that forge did not start: no weights, no versions. Made by `open_remote`."""

    def __init__(
        self, servers: Sequence[RemoteServer], *, table: ServeTable, stop_token_ids: Sequence[int]
    ) -> None:
        super().__init__(servers, stop_token_ids=stop_token_ids, slots=table.slots, wait_s=WAIT_S)
        self.all = tuple(servers)

    @property
    def version(self) -> int:
        """Always 0: the server's weights do not change."""
        return 0

    @property
    def features(self) -> frozenset[str]:
        """None."""
        return frozenset()

    async def watch(self) -> None:
        """Probe servers that hung up or were silent, and mark them up when they answer."""
        while True:
            await anyio.sleep(PROBE_EVERY_S)
            for server in self.all:
                if server.is_up:
                    continue
                try:
                    await server.client.look()
                except (ChildDied, Stalled) as error:
                    logger.debug("%s", error)
                    continue
                server.num_deaths += 1
                self.router.forget(server.name)
                self.note_up()


@asynccontextmanager
async def open_remote(
    table: ServeTable,
    *,
    chat: ChatPort,
    say: Callable[[str], None],
    thinking: str = "think",
    by_messages: bool = False,
) -> AsyncGenerator[Remote]:
    """Connect to every URL of the table. `chat` and `thinking`, the tag of `prompt.thinking`, are
    for servers that only chat; `say` gets notes that affect the evaluation. `by_messages`: ask all
    servers by messages, since `chat` has no tokenizer.

    Raises ConfigError if a model or a key is missing or a server has another model, MachineError if
    no server answers.
    """
    async with AsyncExitStack() as opened:
        servers: list[RemoteServer] = []
        for url in table.url:
            client = await opened.enter_async_context(
                open_server(url, timeout_s=table.request_timeout_s, key_env=table.api_key_env)
            )
            found = await discover(
                client,
                model_name=table.model_name,
                by_messages=by_messages,
            )
            if found.dialect is Dialect.CHAT:
                say(f"{url} is asked by messages: its own template, no log probabilities")
            servers.append(RemoteServer(client, found, chat=chat, thinking=thinking))
        remote = Remote(servers, table=table, stop_token_ids=chat.stop_token_ids)
        tasks = await opened.enter_async_context(anyio.create_task_group())
        tasks.start_soon(remote.watch)
        try:
            yield remote
        finally:
            tasks.cancel_scope.cancel()
