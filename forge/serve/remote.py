# pyright: strict
"""Running servers in place of replicas: `[serve] url`, for evaluations and searches.

A server speaks one of two dialects, which is found before anything is sampled:

    FORGE    /v1/completions of our own engines (`forge serve`): ids and log probabilities, packed
    CHAT     /v1/chat/completions: messages in, text out; ids are our tokenizer's, no logprobs;
             thinking that a server sends apart from the text gets its tag back

A server's name proves nothing: one with the /health of our engines speaks FORGE. Promises: any
answer becomes completions or a MachineError of one line; a server that hung up or was silent gets
no request until it answers again; every call ends with an answer or with an error that names the
URL (ChildDied: it hung up; Stalled: it was silent; ConfigError: it refused; MachineError: it
failed). Not promised: that it serves the model of `[model]`.

The openai package is not used: our packed format is outside its types, its errors would need the
same mapping, and its import takes 0.35 s.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

from forge.config.schema import ServeTable
from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process import ask
from forge.process.busy import BusyClock
from forge.process.strict_json import parse_json
from forge.records import Completion, Finish
from forge.serve.served import SampleRequest, Served
from forge.serve.wire import COMPACT, unpack

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"
"""Names of the maximum of tokens, in OpenAI's older and newer models."""
SHORT_TIMEOUT_S = 20.0
BUSY = frozenset({429, 503})
BUSY_ATTEMPTS = 8
BUSY_PAUSE_S = 1.0
"""First pause before another attempt without Retry-After. Doubles up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 30.0
SILENT = frozenset({408, 504})
"""The server got no request in time, or a gateway no answer from it."""
KEY_REFUSED = frozenset({401, 403})
CONTENT_REFUSED = frozenset({400, 413, 422})
"""Refusals of one request, mostly as too long: the server may answer others."""
MAX_NAMES = 8
KIND_CHARS = 32


class RefusedRequest(ConfigError):
    """The server refuses the content of a request."""


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
        self._limit_name = LIMIT
        self.say: Callable[[str], None] = logger.warning
        self._noted: set[str] = set()

    async def post(self, path: str, body: Mapping[str, Any], *, accept: str = "") -> bytes:
        """Content of a 200. Repeats the request while the server is busy; raises ConfigError if it
        refuses."""
        headers = {"Accept": accept} if accept else {}
        pause_s = BUSY_PAUSE_S
        response = await self._send("POST", path, body, self._timeout_s, headers)
        for _ in range(BUSY_ATTEMPTS - 1):
            if response.status not in BUSY:
                break
            self.note(self.refusal(response))
            await anyio.sleep(
                ask.retry_pause_s(response, default_s=pause_s, longest_s=LONGEST_PAUSE_S)
            )
            pause_s *= 2
            response = await self._send("POST", path, body, self._timeout_s, headers)
        if response.status != 200:
            raise self.refusal(response)
        return response.content

    async def post_limited(self, path: str, body: Mapping[str, Any], *, accept: str = "") -> bytes:
        """`post` with `max_tokens`, or with its newer name once the server asked for that."""
        sent = self._renamed(body)
        try:
            return await self.post(path, sent, accept=accept)
        except ConfigError as error:
            if LIMIT not in sent or NEWER_LIMIT not in str(error):
                raise
            self._limit_name = NEWER_LIMIT
            return await self.post(path, self._renamed(body), accept=accept)

    def _renamed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {self._limit_name if name == LIMIT else name: body[name] for name in body}

    async def models(self) -> list[dict[str, Any]]:
        """The models that the server lists, each with an id; empty if it lists none."""
        found = await self.json("GET", "/v1/models")
        data: Any = cast("dict[str, Any]", found).get("data") if isinstance(found, dict) else None
        entries = cast("list[Any]", data) if isinstance(data, list) else []
        return [one for one in entries if isinstance(one, dict) and isinstance(one.get("id"), str)]  # pyright: ignore[reportUnknownMemberType]

    async def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON of a 200; None for other answers. Raises ConfigError if the key is refused."""
        response = await self._send(method, path, body, SHORT_TIMEOUT_S, {})
        if response.status in KEY_REFUSED:
            raise self.refusal(response)
        try:
            return response.json() if response.status == 200 else None
        except ValueError:
            return None

    async def look(self) -> None:
        """Check that the server answers. Raises ChildDied or Stalled."""
        await self._send("GET", "/health", None, SHORT_TIMEOUT_S, {})
        self.is_up = True

    def note(self, failure: ForgeError) -> None:
        """Says why a request is sent again: once for each kind, which the first words tell."""
        kind = str(failure)[: len(self.url) + KIND_CHARS]
        if kind not in self._noted:
            self._noted.add(kind)
            self.say(f"{failure}; it is asked again")

    def refusal(self, response: ask.Answer) -> ForgeError:
        status, said = response.status, ask.error_message(response.content)
        if status in KEY_REFUSED:
            return ConfigError(f"{self.url}: {said}; {self._key_setting} names the key's variable")
        if status in SILENT:
            return Stalled(f"{self.url}: {status}: {said}")
        if status in CONTENT_REFUSED:
            return RefusedRequest(f"{self.url}: {status}: {said}")
        kind = ConfigError if 400 <= status < 500 and status not in BUSY else MachineError
        return kind(f"{self.url}: {status}: {said}")

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float,
        headers: Mapping[str, str],
    ) -> ask.Answer:  # fmt: skip
        try:
            return await ask.send(
                self._http, method, path, body,
                server=self.url, timeout_s=timeout_s, headers=headers,
            )  # fmt: skip
        except (ChildDied, Stalled):
            self.is_up = False
            raise


@asynccontextmanager
async def open_server(
    url: str, *, timeout_s: float, key_env: str | None, key_setting: str = "serve.api_key_env"
) -> AsyncGenerator[UrlClient]:
    """The client of a URL, with or without /v1. Raises ConfigError if the key is missing."""
    token = None if key_env is None else os.environ.get(key_env, "")
    if token == "":
        raise ConfigError(f'{key_setting}: found "{key_env}", which is not set or empty')
    root = url.rstrip("/").removesuffix("/v1")  # which users may write
    async with ask.open_url_client(root, timeout_s=timeout_s, token=token) as http:
        yield UrlClient(url, http, timeout_s=timeout_s, key_setting=key_setting)


def choose_model(url: str, there: Sequence[str], wanted: str | None, *, setting: str) -> str:
    """The name of the model to ask for. Raises ConfigError, with the setting, if the server lacks
    the one that is wanted, or has several and none is wanted."""
    if wanted is not None and (wanted in there or not there):
        return wanted
    if wanted is None and len(there) == 1:
        return there[0]
    shown = difflib.get_close_matches(wanted or "", there, n=MAX_NAMES) or there[:MAX_NAMES]
    more = f" and {len(there) - len(shown)} more" if len(there) > len(shown) else ""
    listed = (", ".join(shown) or "none") + more
    if wanted is None:
        raise ConfigError(f"{setting} is absent, and {url} has: {listed}")
    raise ConfigError(f'{setting}: found "{wanted}"; {url} has: {listed}')


PROBE_EVERY_S = 2.0
"""Interval of checks whether a server that hung up or was silent answers again."""
ATTEMPTS = 6
"""Maximum attempts at a request to a server that chats and fails."""
FIRST_PAUSE_S = 1.0
"""Pause before the second attempt. It doubles: 31 s of pauses over all attempts."""
WAIT_S = 120.0
"""Maximum wait for any server to be up."""
SEED_LIMIT = 1 << 31
"""Seeds are taken modulo this: some servers accept signed 32 bits only."""
MAX_COUNTED = 1 << 31
"""A server's count of an answer's tokens is believed below this."""
REASONING = ("reasoning_content", "reasoning")
"""Fields of a chat message with the thinking: DeepSeek, SGLang and older vLLM; OpenRouter and newer
vLLM. The first that is not empty counts."""


class Dialect(StrEnum):
    FORGE = "forge"
    CHAT = "chat"


class ChatPort(Protocol):
    """The tokenizer of the experiment: encodes texts of a server that returns no token ids."""

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """Stop tokens. The first one is appended to an answer that the model ended."""
        ...


async def discover(
    client: UrlClient, *, model_name: str | None, by_messages: bool
) -> tuple[Dialect, str]:
    """A server's dialect, and the name of its model in requests; empty if it needs none. Raises
    ConfigError if the model or a key is missing, MachineError if no server answers."""
    try:
        answer = await client.json("GET", "/health")
        health = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
        named: list[str] | None = None
        if not (is_ours := "features" in health):
            named = [entry["id"] for entry in await client.models()]
        elif isinstance(health.get("model"), str):
            named = [health["model"]]
    except (ChildDied, Stalled) as error:
        raise MachineError(f"serve.url: no engine answers: {error}") from error
    model = ""  # an engine alone reports none
    if named is not None:
        model = choose_model(client.url, named, model_name, setting="serve.model_name")
    dialect = Dialect.FORGE if is_ours and not by_messages else Dialect.CHAT
    logger.info("%s serves %s, asked by %s", client.url, model or "forge's engine", dialect)
    return dialect, model


class RemoteServer:
    """One URL, as a server of `Served`."""

    def __init__(
        self, client: UrlClient, dialect: Dialect, model: str, *, chat: ChatPort,
        thinking: str = "think",
    ) -> None:  # fmt: skip
        """`thinking`: tag around thinking that a chat server sends apart; empty leaves it out."""
        self.name, self.client = client.url, client
        self.dialect, self.model = dialect, model
        self.load = self.generated_tokens = self.num_deaths = 0
        self.busy = BusyClock()
        self._chat, self._thinking = chat, thinking

    @property
    def is_up(self) -> bool:
        return self.client.is_up

    async def complete(self, request: SampleRequest) -> list[Completion]:
        """Sample. CHAT sends n requests, since few such servers accept n."""
        with self.busy.running():
            if self.dialect is Dialect.CHAT:
                return await self._ask_singly(request)
            body = {
                "prompt": list(request.prompt.ids), "n": request.n, "seed": request.seed,
                "max_tokens": request.max_tokens, "temperature": request.temperature,
                "stop_token_ids": list(request.stop_token_ids),
            }  # fmt: skip
            content = await self.client.post_limited("/v1/completions", body, accept=COMPACT)
            with self._named():
                return await ask.parse_content(content, partial(read_packed, n=request.n))

    async def _ask_singly(self, request: SampleRequest) -> list[Completion]:
        answers: dict[int, Completion] = {}
        failures: list[ForgeError] = []

        async def one(index: int) -> None:
            try:
                answers[index] = await self._ask_again(request, request.seed + index)
            except ForgeError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index in range(request.n):
                group.start_soon(one, index)
        if failures:
            raise failures[0]
        return [answers[index] for index in range(request.n)]

    async def _ask_again(self, request: SampleRequest, seed: int) -> Completion:
        """Ask a server that chats up to ATTEMPTS times: a hosted one fails now and then, and
        answers what cannot be read."""
        for number in range(ATTEMPTS - 1):
            try:
                return await self._chat_once(request, seed)
            except MachineError as error:
                self.client.note(error)
            await anyio.sleep(FIRST_PAUSE_S * 2**number)
        return await self._chat_once(request, seed)

    async def _chat_once(self, request: SampleRequest, seed: int) -> Completion:
        """Raises ConfigError if it refuses, MachineError if it fails, ChildDied, Stalled."""
        body = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
            "max_tokens": request.max_tokens, "seed": seed % SEED_LIMIT,
            # Set, so that an evaluation does not sample with the server's defaults.
            "temperature": request.temperature, "top_p": 1.0,
        }  # fmt: skip
        content = await self.client.post_limited("/v1/chat/completions", body)
        with self._named():  # here: a tokenizer belongs to the loop's thread
            return read_chat(content, encode=self._encode_answer, thinking=self._thinking)

    @contextmanager
    def _named(self) -> Generator[None]:
        try:
            yield
        except MachineError as error:
            raise MachineError(f"{self.name}: {error}") from error

    def _encode_answer(self, text: str, is_ended: bool) -> list[int]:
        end = [self._chat.stop_token_ids[0]] if is_ended else []
        return [*self._chat.encode_plain(text), *end]


def read_packed(content: bytes, *, n: int) -> list[Completion]:
    """The completions of FORGE. Versions of its weights are not this run's, and become 0. Raises
    MachineError, without the server's name, as `read_chat`."""
    found = unpack(content)
    if len(found) != n:
        raise MachineError(f"it gave {len(found)} samples; requested were {n}")
    return [replace(one, min_version=0, max_version=0) for one in found]


def read_chat(
    content: bytes, *, encode: Callable[[str, bool], list[int]], thinking: str = "think"
) -> Completion:
    """The completion of CHAT. `encode` makes ids from a text, with the stop token if the flag says
    that the model ended it."""
    try:
        answer = parse_json(content)
        choices = answer["choices"]
        if len(choices) != 1:
            raise MachineError(f"it gave {len(choices)} samples; requested were 1")
        choice = choices[0]
        finish = choice.get("finish_reason")
        text = _with_thinking(choice["message"], thinking, is_cut=finish == Finish.LENGTH)
        return Completion(
            token_ids=tuple(encode(text, finish != Finish.LENGTH)),
            logprobs=(),
            # STOP for other reasons too (`content_filter`, `eos`, none): the model ended the text.
            finish=Finish(finish) if finish in (Finish.LENGTH, Finish.ABORT) else Finish.STOP,
            min_version=0,
            max_version=0,
            counted=_counted(answer.get("usage")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        shown = content[:200].decode("utf-8", "replace")
        raise MachineError(f"its answer is not in the chat format: {error!r}: {shown}") from error


def _counted(usage: Any) -> int | None:
    """Tokens by the server's count; None if it has no count that can be."""
    known = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    counted = known.get("completion_tokens")
    return counted if isinstance(counted, int) and 0 <= counted < MAX_COUNTED else None


def _with_thinking(message: Mapping[str, Any], tag: str, *, is_cut: bool) -> str:
    """The text as the model wrote it: thinking in its tag, which a cut one never closed."""
    text = message.get("content") or ""
    reasoning = next((message[name] for name in REASONING if message.get(name)), "")
    if not tag or not reasoning:
        return text
    if is_cut and not text:
        return f"<{tag}>\n{reasoning}"
    return f"<{tag}>\n{reasoning.strip()}\n</{tag}>\n\n{text}"


class Remote(Served):
    """Servers that forge did not start: no weights, no versions. Made by `open_remote`."""

    version = 0
    features: frozenset[str] = frozenset()

    def __init__(
        self, servers: Sequence[RemoteServer], *, table: ServeTable, stop_token_ids: Sequence[int]
    ) -> None:
        super().__init__(servers, stop_token_ids=stop_token_ids, slots=table.slots, wait_s=WAIT_S)
        self.all = tuple(servers)

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
    table: ServeTable, *, chat: ChatPort, say: Callable[[str], None], thinking: str = "think",
    by_messages: bool = False,
) -> AsyncGenerator[Remote]:  # fmt: skip
    """Connect to every URL of the table. `chat` and `thinking`, the tag of `prompt.thinking`, are
    for servers that only chat; `say` gets notes that affect the evaluation. `by_messages`: ask all
    servers by messages, since `chat` has no tokenizer. Raises as `discover`."""
    async with AsyncExitStack() as opened:
        servers: list[RemoteServer] = []
        for url in table.url:
            client = await opened.enter_async_context(
                open_server(url, timeout_s=table.request_timeout_s, key_env=table.api_key_env)
            )
            dialect, model = await discover(
                client, model_name=table.model_name, by_messages=by_messages
            )
            client.say = say
            if dialect is Dialect.CHAT:
                say(f"{url} is asked by messages: its own template, no log probabilities")
            servers.append(RemoteServer(client, dialect, model, chat=chat, thinking=thinking))
        remote = Remote(servers, table=table, stop_token_ids=chat.stop_token_ids)
        tasks = await opened.enter_async_context(anyio.create_task_group())
        tasks.start_soon(remote.watch)
        try:
            yield remote
        finally:
            tasks.cancel_scope.cancel()
