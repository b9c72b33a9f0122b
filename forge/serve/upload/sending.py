# pyright: strict
"""The side of the run in an upload of weights: `[serve] url` in a run that trains.

Opened by the runner. The servers are `forge serve --weights` of this version of forge. Promises: a
server is asked only while it has the weights that this run published last; one that was started
again gets them before the next request; one that another run took ends this run with a line; only
files that the server lacks are sent; an interrupted upload continues with the file it was at; a
lost network is waited for until nothing has arrived for `patience_s`; every failure is one line
that names the server.

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
import anyio.to_thread

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import Answer, error_message, named_errors, send
from forge.serve.port import SLEEP
from forge.serve.remote.dialects import Dialect, discover
from forge.serve.remote.remote import WAIT_S, ChatPort, RemoteServer
from forge.serve.remote.url_client import OtherWeights, open_server
from forge.serve.upload.files import CLAIM, CONFLICT, DAMAGED, FULL, SAME, Digests
from forge.serve.weights import Publishing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    import httpx

    from forge.config.schema import ServeTable
    from forge.records import Completion
    from forge.serve.remote.dialects import RemoteModel
    from forge.serve.remote.url_client import UrlClient
    from forge.serve.served import SampleRequest
    from forge.serve.weights import Weights

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""Interval of /health, which also keeps the claim."""
PIECE_BYTES = 1 << 20
RETRY_PAUSE_S = 0.5
"""First pause after a lost connection. Doubles up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 5.0
SHORT_TIMEOUT_S = 20.0
"""Maximum wait for answers that need no work."""
CLAIM_TIMEOUT_S = 600.0
"""Maximum wait for a claim: the server reads the digests of its own model first."""
RELEASE_S = 2.0
MAX_SENDS = 3
"""Maximum times that a file is sent which arrives damaged."""
SILENT_S = 20.0
"""Maximum time in which the connection takes nothing more of a file."""
ABSENT = frozenset({404, 405})


class WeightTaker(RemoteServer):
    """One URL whose weights change."""

    def __init__(
        self, client: UrlClient, found: RemoteModel, sender: WeightSender, *, chat: ChatPort,
        weights: Weights,
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
        self.on_up: Callable[[], None] = lambda: None
        """Called when it serves the wanted weights, or answers again."""

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
                except OtherWeights as error:
                    logger.warning("%s; claiming it again", error)
                    await self.sender.claim()
                    continue
                except ConfigError:
                    self._served = served  # refused: the old weights are still served
                    raise
                seconds = time.monotonic() - began
                logger.info("%s serves version %d (%.3f s)", self.name, wanted.version, seconds)
                self._served = wanted
        self.on_up()

    async def scores(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, timeout_s: float
    ) -> list[list[float]]:
        """Log probabilities from each engine of the server."""
        body = {"prompt_ids": list(prompt_ids), "completion_ids": list(completion_ids)}
        while True:
            await self.send()
            try:
                return await self.sender.scores(body)
            except OtherWeights as error:
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
                try:
                    await self.send()
                except (ChildDied, Stalled) as error:
                    logger.warning("%s", error)
            elif not was_up:
                self.on_up()


class RemoteReplicas(Publishing[WeightTaker]):
    """The servers of a run that trains. Made by `open_takers`."""

    def __init__(self, servers: Sequence[WeightTaker], *, table: ServeTable, weights: Weights,
                 stop_token_ids: Sequence[int]) -> None:  # fmt: skip
        super().__init__(
            servers, weights=weights, stop_token_ids=stop_token_ids, slots=table.slots,
            request_timeout_s=table.request_timeout_s, through_restart_s=table.request_timeout_s,
            wait_s=max(WAIT_S, table.request_timeout_s),
        )  # fmt: skip
        for server in servers:
            server.on_up = partial(self._server_up, server)

    def _server_up(self, server: WeightTaker) -> None:
        self.router.forget(server.name)
        self.note_up()


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
        for url in table.url:
            client, sender = await opened.enter_async_context(
                _claimed(url, table, owner=owner, forge=forge, digests=digests)
            )
            found = await discover(client, model_name=table.model_name)
            assert found.dialect is Dialect.FORGE
            servers.append(WeightTaker(client, found, sender, chat=chat, weights=weights))
        replicas = RemoteReplicas(
            servers, table=table, weights=weights, stop_token_ids=chat.stop_token_ids
        )
        await replicas.for_each(lambda each: each.send())
        tasks = await opened.enter_async_context(anyio.create_task_group())
        for server in servers:
            tasks.start_soon(server.watch)
        try:
            yield replicas
        finally:
            tasks.cancel_scope.cancel()


async def check_takers(table: ServeTable, *, owner: str, forge: str) -> None:
    """Raise as `open_takers` if a server would not take this run's weights; leaves no claim."""
    for url in table.url:
        async with _claimed(url, table, owner=owner, forge=forge, digests=Digests()):
            pass


@asynccontextmanager
async def _claimed(
    url: str, table: ServeTable, *, owner: str, forge: str, digests: Digests
) -> AsyncGenerator[tuple[UrlClient, WeightSender]]:
    """The connection to a server of the same settings, where no other run publishes meanwhile."""
    timeout_s = table.request_timeout_s
    async with open_server(url, timeout_s=timeout_s, key_env=table.api_key_env) as (client, http):
        sender = WeightSender(
            client, http, owner=owner, forge=forge, digests=digests, patience_s=timeout_s
        )
        try:
            await sender.claim()
        except (ChildDied, Stalled) as error:
            raise MachineError(f"serve.url: no engine answers: {error}") from error
        try:
            _require_same(sender, table)
            yield client, sender
        finally:
            await sender.release()


def _require_same(sender: WeightSender, table: ServeTable) -> None:
    """Raise ConfigError for a server with other settings."""
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


class WeightSender:
    """The connection to one server."""

    def __init__(
        self, client: UrlClient, http: httpx.AsyncClient, *, owner: str, forge: str,
        digests: Digests, patience_s: float,
    ) -> None:  # fmt: skip
        """`http`: the connections of `client`; `owner` names the run in messages there;
        `patience_s`: maximum time without progress."""
        self.url = client.url
        self._client = client
        self.facts: dict[str, Any] = {}
        """The answer to the last claim."""
        self.sent_bytes = 0
        self._http = http
        self._owner = owner
        self._forge = forge
        self._digests = digests
        self._patience_s = patience_s
        self._progress_at = time.monotonic()

    async def claim(self) -> None:
        """Become the one run that publishes there.

        Raises:
            ConfigError: the server accepts no weights, no such token, or is of another version of
                forge.
            MachineError: another run publishes there.
            ChildDied, Stalled: it does not answer.
        """
        body = {"owner": self._owner, "forge": self._forge}
        answer = await self._send("/weights/claim", body, timeout_s=CLAIM_TIMEOUT_S)
        if answer.status in ABSENT:
            raise ConfigError(
                f"{self.url} accepts no weights: start it with forge serve --weights, or "
                "leave only eval stages"
            )
        if answer.status == CONFLICT:
            kind = ConfigError if SAME in error_message(answer.content) else MachineError
            raise kind(f"{self.url}: {error_message(answer.content)}")
        self.facts = self._read(answer)
        self._http.headers[CLAIM] = str(self.facts.get("claim"))

    async def release(self) -> None:
        """Let other runs publish there. A server that does not answer is left alone."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_S):
            try:
                await self._send("/weights/release", {}, timeout_s=RELEASE_S)
            except ForgeError as error:
                logger.info("%s", error)

    async def serve(self, weights: Weights) -> float:
        """Send what is missing and return once it is served; returns the server's seconds.

        Raises:
            ConfigError: the server refuses the weights.
            MachineError: its disk is full, a file arrived damaged MAX_SENDS times, or another run
                publishes there (OtherWeights).
            Stalled: there was no progress for `patience_s`.
        """
        body: dict[str, Any] = {
            "version": weights.version, "full_version": weights.full_version, "adapter": None,
        }  # fmt: skip
        paths: dict[str, Path] = {}
        for name, directory in (("full", weights.full), ("adapter", weights.adapter)):
            if directory is not None:
                files = await anyio.to_thread.run_sync(self._digests.manifest, directory)
                paths |= {file.sha256: directory / file.name for file in files}
                body[name] = [file.model_dump() for file in files]
        self._progress_at = time.monotonic()
        await self._through_outages(partial(self._upload, paths))
        answer = await self._through_outages(
            lambda: self._send("/weights", body, timeout_s=self._patience_s)
        )
        found = self._read(answer)
        if found.get("version") != weights.version:
            raise MachineError(
                f"{self.url} acknowledged version {found.get('version')}; requested was "
                f"{weights.version}"
            )
        return float(found["seconds"])

    async def scores(self, body: Mapping[str, Any]) -> list[list[float]]:
        """Log probabilities of a completion from each of the server's engines."""
        answer = await self._through_outages(
            lambda: self._send("/weights/scores", body, timeout_s=self._patience_s)
        )
        return [[float(one) for one in row] for row in self._read(answer)["logprobs"]]

    # -- files -----------------------------------------------------------------------------------

    async def _upload(self, paths: Mapping[str, Path]) -> None:
        """Send every file that is missing there, one after the other. Raises ChildDied or Stalled
        when the connection is lost."""
        # Under names of their own: a model and its adapter have files of one name.
        files = [
            {"name": f"{n}{path.suffix}", "sha256": digest, "num_bytes": path.stat().st_size}
            for n, (digest, path) in enumerate(paths.items())
        ]
        answer = await self._send("/weights/files", {"files": files}, timeout_s=SHORT_TIMEOUT_S)
        for digest in self._read(answer)["missing"]:
            for _ in range(MAX_SENDS):
                answer = await self._send_file(digest, paths[digest])
                if answer.status != DAMAGED:
                    break
            self._read(answer)

    async def _send_file(self, digest: str, path: Path) -> Answer:
        """Send the bytes of a file."""
        num_bytes = path.stat().st_size
        asked = f"PUT {path.name} ({num_bytes / 1e6:.1f} MB)"
        with named_errors(self.url, asked, timeout_s=SILENT_S):
            response = await self._http.put(
                f"/weights/files/{digest}",
                params={"num_bytes": num_bytes},
                content=self._pieces(path),
                headers={
                    "Content-Type": "application/octet-stream", "Content-Length": str(num_bytes),
                },
                timeout=SILENT_S,
            )  # fmt: skip
        return Answer(status=response.status_code, content=response.content)

    async def _pieces(self, path: Path) -> AsyncGenerator[bytes]:
        async with await anyio.open_file(path, "rb") as file:
            while piece := await file.read(PIECE_BYTES):
                yield piece
                self.sent_bytes += len(piece)
                self._progress_at = time.monotonic()

    # -- requests --------------------------------------------------------------------------------

    async def _through_outages(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask again after lost connections, until there was no progress for `patience_s`."""
        pause_s, is_told = RETRY_PAUSE_S, False
        while True:
            try:
                return await ask()
            except (ChildDied, Stalled) as error:
                silent_s = time.monotonic() - self._progress_at
                if silent_s > self._patience_s:
                    raise Stalled(f"{error}; no progress for {silent_s:.0f} s") from error
                if not is_told:
                    logger.warning("%s; trying for %.0f s more", error, self._patience_s - silent_s)
                    is_told = True
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _send(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Answer:
        return await send(self._http, "POST", path, body, server=self.url, timeout_s=timeout_s)

    def _read(self, answer: Answer) -> dict[str, Any]:
        """The JSON of a 200. Raises by status."""
        if answer.status in (DAMAGED, FULL):
            raise MachineError(f"{self.url}: {error_message(answer.content)}")
        if answer.status != 200:
            raise self._client.refusal(answer)
        return answer.json()
