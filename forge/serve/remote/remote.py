"""Servers that are already running answer in place of replicas: `[serve] url`.

Opened by the runner for evaluations. Promises: what a server speaks is found out before anything is
sampled, and said; one that hangs up is asked nothing until it answers again; no weights are ever
sent. Not promised: that it serves the model of `[model]`, whose tokenizer and template are ours;
where a server tells how it splits a text, that must be how ours does, or it is asked by messages.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import open_url_client, parse_content
from forge.process.busy import BusyClock
from forge.serve.remote.discovery import SPLIT_ME, RemoteModel, discover
from forge.serve.remote.openai_wire import PATHS, Dialect, RemoteRequest, read_answer
from forge.serve.remote.url_client import UrlClient
from forge.serve.served import Served, not_changeable
from forge.serve.wire import COMPACT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from forge.config.schema import ServeTable
    from forge.records import Completion, Prompt

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 2.0
"""Whether one that hung up answers again."""
WAIT_S = 120.0
"""For one of them to be up."""
NEWER_LIMIT = "max_completion_tokens"


class ChatPort(Protocol):
    """Our tokenizer: encodes the text of a server that returns no token ids."""

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is special."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """The first one ends an answer."""
        ...


class RemoteServer:
    """One URL."""

    def __init__(self, client: UrlClient, found: RemoteModel, *, chat: ChatPort) -> None:
        self.name = client.url
        self.load = 0
        self.generated_tokens = 0
        self.num_deaths = 0
        self.found = found
        self.client = client
        self._chat = chat
        self._limit_name = "max_tokens"
        self._busy = BusyClock()

    @property
    def is_up(self) -> bool:
        """Whether it answered the last time it was asked."""
        return self.client.is_up

    @property
    def busy_s(self) -> float:
        return self._busy.busy_s

    async def complete(
        self, prompt: Prompt, *, n: int, max_tokens: int, temperature: float,
        seed: int, stop_token_ids: Sequence[int],
    ) -> list[Completion]:  # fmt: skip
        """Sample; for CHAT as n requests, since few such servers take n."""
        is_chat = self.found.dialect is Dialect.CHAT
        request = RemoteRequest(
            prompt=prompt,
            n=n,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=stop_token_ids,
        )
        with self._busy.running():
            if not is_chat:
                return await self._ask(request)
            return await self._ask_singly(request)

    async def _ask_singly(self, request: RemoteRequest) -> list[Completion]:
        answers: dict[int, Completion] = {}
        failures: list[ForgeError] = []

        async def one(index: int) -> None:
            try:
                single = replace(request, n=1, seed=request.seed + index)
                (answers[index],) = await self._ask(single)
            except ForgeError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index in range(request.n):
                group.start_soon(one, index)
        if failures:
            raise failures[0]
        return [answers[index] for index in range(request.n)]

    async def _ask(self, request: RemoteRequest) -> list[Completion]:
        """Raises ConfigError where it refuses, MachineError where it cannot, ChildDied, Stalled."""
        content = await self._post(request.body(self.found.dialect, model=self.found.model))
        parse = partial(
            read_answer, dialect=self.found.dialect, n=request.n, encode=self._encode_answer
        )
        try:
            if self.found.dialect is Dialect.CHAT:
                return parse(content)  # a tokenizer belongs to the loop's thread
            return await parse_content(content, parse)
        except MachineError as error:
            raise MachineError(f"{self.name}: {error}") from error

    async def _post(self, body: dict[str, Any]) -> bytes:
        """OpenAI's newer models call the limit otherwise, and say so: from then on so do we."""
        accept = COMPACT if self.found.dialect is Dialect.FORGE else ""
        path, limit = PATHS[self.found.dialect], body.pop("max_tokens", None)
        named = {} if limit is None else {self._limit_name: limit}
        try:
            return await self.client.post(path, {**body, **named}, accept=accept)
        except ConfigError as error:
            if NEWER_LIMIT not in str(error) or limit is None or NEWER_LIMIT in named:
                raise
            self._limit_name = NEWER_LIMIT
            return await self.client.post(path, {**body, NEWER_LIMIT: limit}, accept=accept)

    def _encode_answer(self, text: str, is_ended: bool) -> list[int]:
        end = [self._chat.stop_token_ids[0]] if is_ended else []
        return [*self._chat.encode_plain(text), *end]


class Remote(Served):
    """What `open_remote` yields: no weights, no versions, nothing started and nothing stopped."""

    def __init__(
        self, servers: Sequence[RemoteServer], *, table: ServeTable, stop_token_ids: Sequence[int]
    ) -> None:
        super().__init__(servers, stop_token_ids=stop_token_ids, slots=table.slots, wait_s=WAIT_S)
        self.servers = tuple(servers)
        self._where = f"serve.url = {[server.name for server in servers]}"

    @property
    def version(self) -> int:
        """0: the weights are the server's own, and stay."""
        return 0

    @property
    def features(self) -> frozenset[str]:
        return frozenset()

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        raise not_changeable(self._where)

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        raise not_changeable(self._where)

    async def sleep(self) -> None:
        """Nothing: their memory is not ours."""

    async def wake(self) -> None:
        """Nothing: they never slept."""

    async def watch(self) -> None:
        """Find out when one that hung up answers again."""
        while True:
            await anyio.sleep(PROBE_EVERY_S)
            for server in self.servers:
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
    table: ServeTable, *, chat: ChatPort, say: Callable[[str], None]
) -> AsyncIterator[Remote]:
    """Connect to every URL of the table. `say` hears what makes an evaluation another one.

    Raises:
        ConfigError: a model or a key is missing, or not the one that is there.
        MachineError: nobody answers.
    """
    token = _key(table.api_key_env)
    async with AsyncExitStack() as opened:
        servers: list[RemoteServer] = []
        for url in table.url:
            http = open_url_client(_root(url), timeout_s=table.request_timeout_s, token=token)
            await opened.enter_async_context(http)
            client = UrlClient(url, http, timeout_s=table.request_timeout_s)
            found = await discover(
                client,
                split_ids=chat.encode_plain(SPLIT_ME),
                stop_token_ids=chat.stop_token_ids,
                model_name=table.model_name,
            )
            if found.dialect is Dialect.CHAT:
                say(f"{url} is asked by messages: its own template, no log probabilities")
            servers.append(RemoteServer(client, found, chat=chat))
        remote = Remote(servers, table=table, stop_token_ids=chat.stop_token_ids)
        tasks = await opened.enter_async_context(anyio.create_task_group())
        tasks.start_soon(remote.watch)
        try:
            yield remote
        finally:
            tasks.cancel_scope.cancel()


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise ConfigError(f'serve.api_key_env: found "{variable}", which is not set or empty')
    return key


def _root(url: str) -> str:
    """As people write it: with or without /v1 at its end."""
    return url.rstrip("/").removesuffix("/v1")
