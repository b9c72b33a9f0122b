# pyright: strict
"""Sends weights to one server and has them served: the run's side of `endpoints`.

Owned by `serve.remote.taking`, one per URL. Promises: only files that the server lacks are sent;
an interrupted upload continues at the byte that the server has; a lost network is waited for until
nothing has arrived for `patience_s`; every failure is one line that names the server.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.errors import ChildDied, ConfigError, ForgeError, MachineError, Stalled
from forge.process.ask import Answer, error_message, named_errors, send
from forge.serve.upload.protocol import CLAIM, CONFLICT, DAMAGED, FULL, SAME

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from pathlib import Path

    import httpx

    from forge.serve.upload.manifest import Digests, Manifest, WeightFile
    from forge.serve.weights import Weights

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
RETRY_PAUSE_S = 0.5
"""First pause after a lost connection. Doubles up to LONGEST_PAUSE_S."""
LONGEST_PAUSE_S = 5.0
SHORT_TIMEOUT_S = 20.0
"""Maximum wait for answers that need no work."""
CLAIM_TIMEOUT_S = 600.0
"""Maximum wait for a claim: the server reads the digests of its own model first."""
RELEASE_S = 2.0
SILENT_S = 20.0
"""Maximum time in which the connection takes nothing more of a file."""
DAMAGED_ATTEMPTS = 3
"""Maximum times that a file is sent whose bytes arrive changed."""
KEY_REFUSED = frozenset({401, 403})
ABSENT = frozenset({404, 405})


class LostClaim(MachineError):
    """The server does not know this run any more: it was started again, or another run took it."""


class WeightSender:
    """The connection to one server."""

    def __init__(
        self, url: str, http: httpx.AsyncClient, *, owner: str, forge: str, digests: Digests,
        patience_s: float,
    ) -> None:  # fmt: skip
        """`owner` names the run in messages there; `patience_s`: maximum time without progress."""
        self.url = url
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
            MachineError: its disk is full, or another run publishes there (LostClaim).
            Stalled: there was no progress for `patience_s`.
        """
        full = await anyio.to_thread.run_sync(self._digests.manifest, weights.full)
        adapter = None
        if weights.adapter is not None:
            adapter = await anyio.to_thread.run_sync(self._digests.manifest, weights.adapter)
        paths = {file.sha256: weights.full / file.name for file in full}
        if weights.adapter is not None:
            paths |= {file.sha256: weights.adapter / file.name for file in adapter or ()}
        self._progress_at = time.monotonic()
        await self._through_outages(partial(self._upload, (*full, *(adapter or ())), paths))
        body = {
            "version": weights.version,
            "full_version": weights.full_version,
            "full": [file.to_json() for file in full],
            "adapter": None if adapter is None else [file.to_json() for file in adapter],
        }
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

    async def _upload(self, manifest: Manifest, paths: Mapping[str, Path]) -> None:
        """Send every file that is missing there, one after the other. Raises ChildDied or Stalled
        when the connection is lost."""
        unique = list({file.sha256: file for file in manifest}.values())
        by_name = {file.sha256: file for file in unique}
        body = {"files": [_numbered(index, file) for index, file in enumerate(unique)]}
        found = self._read(await self._send("/weights/files", body, timeout_s=SHORT_TIMEOUT_S))
        for digest, received in found["missing"].items():
            offset = int(received)
            for attempt in range(1, DAMAGED_ATTEMPTS + 1):
                answer = await self._send_file(by_name[digest], paths[digest], offset=offset)
                if answer.status != DAMAGED or attempt == DAMAGED_ATTEMPTS:
                    self._read(answer)
                    break
                offset = 0

    async def _send_file(self, file: WeightFile, path: Path, *, offset: int) -> Answer:
        """Send the bytes of a file from `offset` on."""
        asked = f"PUT {file.name} ({file.num_bytes / 1e6:.1f} MB)"
        params = {"offset": offset, "num_bytes": file.num_bytes}
        with named_errors(self.url, asked, timeout_s=SILENT_S):
            response = await self._http.put(
                f"/weights/files/{file.sha256}",
                params=params,
                content=self._pieces(path, offset),
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Length": str(file.num_bytes - offset),
                },
                timeout=SILENT_S,
            )
        return Answer(status=response.status_code, content=response.content)

    async def _pieces(self, path: Path, offset: int) -> AsyncGenerator[bytes]:
        async with await anyio.open_file(path, "rb") as file:
            await file.seek(offset)
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
        said = f"{self.url}: {error_message(answer.content)}"
        if answer.status in KEY_REFUSED:
            raise ConfigError(f"{said}; serve.api_key_env names the variable with its token")
        if answer.status == CONFLICT:
            raise LostClaim(said)
        if answer.status == FULL:
            raise MachineError(said)
        if answer.status == 408:
            raise Stalled(said)
        if 400 <= answer.status < 500:
            raise ConfigError(said)
        if answer.status != 200:
            raise MachineError(f"{said} ({answer.status})")
        return answer.json()


def _numbered(index: int, file: WeightFile) -> dict[str, Any]:
    """The file under a name of its own: a model and its adapter have files of one name."""
    return {**file.to_json(), "name": f"{index}-{file.name}"[:200]}
