# pyright: strict
"""Running servers in place of replicas: `[serve] url`.

Opened by the runner for evaluations. Promises: a server's dialect is found before anything is
sampled, and reported; a server that hung up gets no request until it answers again; no weights are
sent; every call ends with an answer or with an error that names the URL. Not promised: that it
serves the model of `[model]`, whose tokenizer and template forge uses; a server that reports a
different tokenization is asked by messages.
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
from forge.process.answers import Answer, error_message, parse_content, retry_pause_s
from forge.process.ask import open_url_client, send
from forge.process.busy import BusyClock
from forge.serve.remote.dialects import (
    PATHS,
    SPLIT_ME,
    Dialect,
    RemoteModel,
    discover,
    read_answer,
    request_body,
)
from forge.serve.served import SampleRequest, Served
from forge.serve.wire import COMPACT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from pathlib import Path

    import httpx

    from forge.config.schema import ServeTable
    from forge.records import Completion

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 2.0
"""Interval of checks whether a server that hung up answers again."""
WAIT_S = 120.0
"""Maximum wait for any server to be up."""
NEWER_LIMIT = "max_completion_tokens"
"""Name of max_tokens in OpenAI's newer models."""
SHORT_TIMEOUT_S = 20.0
"""Maximum wait for answers without samples."""
BUSY = frozenset({429, 503})
BUSY_ATTEMPTS = 8
"""Maximum attempts while the server is busy."""
BUSY_PAUSE_S = 1.0
"""First pause before another attempt without Retry-After. Doubles up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 30.0
SILENT = 504
"""A gateway got no answer from the server in time."""
KEY_REFUSED = frozenset({401, 403})
CLAIM_LOST = 409
"""`forge serve --weights`: it was started again, or another run publishes there."""
CONTENT_REFUSED = frozenset({400, 413, 422})
"""Refusals of one request, mostly as too long: the server may answer others."""


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
        self._limit_name = "max_tokens"
        self._has_versions = False
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

    async def _ask(self, request: SampleRequest) -> list[Completion]:
        """Raises ConfigError if it refuses, MachineError if it fails, ChildDied, Stalled."""
        dialect = self.found.dialect
        content = await self._post(request_body(request, dialect, model=self.found.model))
        parse = partial(
            read_answer,
            dialect=dialect,
            n=request.n,
            encode=self._encode_answer,
            thinking=self._thinking,
            has_versions=self._has_versions,
        )
        try:
            if dialect is Dialect.CHAT:
                return parse(content)  # a tokenizer belongs to the loop's thread
            return await parse_content(content, parse)
        except MachineError as error:
            raise MachineError(f"{self.name}: {error}") from error

    async def _post(self, body: dict[str, Any]) -> bytes:
        """Post with `max_tokens`, or with its newer name once the server asked for that."""
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
    """Servers that forge did not start: no weights, no versions. Made by `open_remote`."""

    def __init__(
        self, servers: Sequence[RemoteServer], *, table: ServeTable, stop_token_ids: Sequence[int]
    ) -> None:
        super().__init__(servers, stop_token_ids=stop_token_ids, slots=table.slots, wait_s=WAIT_S)
        self.servers = tuple(servers)

    @property
    def version(self) -> int:
        """Always 0: the server's weights do not change."""
        return 0

    @property
    def features(self) -> frozenset[str]:
        """None."""
        return frozenset()

    async def publish(self, path: Path, version: int, *, rolling: bool = False) -> None:
        """Raises ConfigError."""
        raise self._not_changeable()

    async def probe(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int]
    ) -> list[list[float]]:
        """Raises ConfigError."""
        raise self._not_changeable()

    def _not_changeable(self) -> ConfigError:
        where = f"serve.url = {[server.name for server in self.servers]}"
        return ConfigError(
            f"{where}: its weights cannot be changed, so nothing can be trained there"
        )

    async def sleep(self) -> None:
        """Nothing: the servers' memory is not forge's."""

    async def wake(self) -> None:
        """Nothing: the servers never sleep."""

    async def watch(self) -> None:
        """Probe servers that hung up, and mark them up when they answer."""
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
            client, _ = await opened.enter_async_context(open_client_of(table, url))
            found = await discover(
                client,
                split_ids=None if by_messages else chat.encode_plain(SPLIT_ME),
                stop_token_ids=chat.stop_token_ids,
                model_name=table.model_name,
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


@asynccontextmanager
async def open_client_of(
    table: ServeTable, url: str
) -> AsyncGenerator[tuple[UrlClient, httpx.AsyncClient]]:
    """The client of one URL of the table, and the connections below it. Raises ConfigError if the
    key is missing."""
    root = url.rstrip("/").removesuffix("/v1")  # which users may write
    token = _key(table.api_key_env)
    async with open_url_client(root, timeout_s=table.request_timeout_s, token=token) as http:
        yield UrlClient(url, http, timeout_s=table.request_timeout_s), http


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise ConfigError(f'serve.api_key_env: found "{variable}", which is not set or empty')
    return key


class RefusedRequest(ConfigError):
    """The server refuses the content of a request."""


class OtherWeights(MachineError):
    """The server does not have the weights that this run published."""


class UrlClient:
    """A client of one server. The caller closes `http`."""

    def __init__(
        self, url: str, http: httpx.AsyncClient, *, timeout_s: float,
        key_setting: str = "serve.api_key_env",
    ) -> None:  # fmt: skip
        """`timeout_s`: maximum wait for one answer to `post`. `key_setting`: name, in messages, of
        the setting that holds the key's variable."""
        self.url = url
        self.is_up = True
        """True if it answered the last request, with any status."""
        self._http = http
        self._timeout_s = timeout_s
        self._key_setting = key_setting

    async def post(self, path: str, body: Mapping[str, Any], *, accept: str = "") -> bytes:
        """Content of a 200. Repeats the request while the server is busy; raises ConfigError if it
        refuses."""
        headers = {"Accept": accept} if accept else {}
        pause_s = BUSY_PAUSE_S
        for attempt in range(BUSY_ATTEMPTS):
            response = await self._send("POST", path, body, self._timeout_s, headers)
            if response.status == 200:
                return response.content
            if response.status not in BUSY or attempt == BUSY_ATTEMPTS - 1:
                raise self._refusal(response)
            await anyio.sleep(retry_pause_s(response, default_s=pause_s, longest_s=LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("the loop returns or raises")

    async def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON of a 200; None for other answers. Raises ConfigError if the key is refused."""
        response = await self._send(method, path, body, SHORT_TIMEOUT_S, {})
        if response.status in KEY_REFUSED or response.status == CLAIM_LOST:
            raise self._refusal(response)
        try:
            return response.json() if response.status == 200 else None
        except ValueError:
            return None

    async def look(self) -> None:
        """Check that the server answers. Raises ChildDied or Stalled."""
        await self._send("GET", "/health", None, SHORT_TIMEOUT_S, {})
        self.is_up = True

    def _refusal(self, response: Answer) -> ForgeError:
        status, said = response.status, error_message(response.content)
        if status in KEY_REFUSED:
            return ConfigError(f"{self.url}: {said}; {self._key_setting} names the key's variable")
        if status == SILENT:
            return Stalled(f"{self.url}: {status}: {said}")
        if status == CLAIM_LOST:
            return OtherWeights(f"{self.url}: {said}")
        if status in CONTENT_REFUSED:
            return RefusedRequest(f"{self.url}: {status}: {said}")
        kind = ConfigError if 400 <= status < 500 and status not in BUSY else MachineError
        return kind(f"{self.url}: {status}: {said}")

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float,
        headers: Mapping[str, str],
    ) -> Answer:  # fmt: skip
        try:
            return await send(
                self._http, method, path, body,
                server=self.url, timeout_s=timeout_s, headers=headers,
            )  # fmt: skip
        except ChildDied:
            self.is_up = False
            raise
