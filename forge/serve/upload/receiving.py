# pyright: strict
"""The side of the server in an upload of weights: part of `forge serve --weights`.

`WeightEndpoints` is added to `front`, after the door, so that each request has the token of the
server; `Claims` knows the one run that may publish, `HeldFiles` the files that were sent, by
content. Promises: engines load only files that are complete and have their digest; refused weights
leave the old ones serving; a second run is refused with the name of the first, and the same run,
resumed, continues at once; no upload fills the disk.

    POST /weights/claim    {owner, forge} -> {claim, precision, context_tokens, features}
    POST /weights/release  {}
    POST /weights/files    {files} -> {missing: [sha256]}
    PUT  /weights/files/SHA256?num_bytes=N            the bytes of a file -> {}
    POST /weights          {version, full, full_version, adapter} -> {version, seconds}
    POST /weights/scores   {prompt_ids, completion_ids} -> {logprobs}: a list from each replica

All but the first carry the claim in the header CLAIM.

    blobs/<sha256>         whole files       blobs/<sha256>.<n>.part   one on its way
    weights/<n>-v<version>/<name>            links to whole files: what an engine loads
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.server.door import Refused, read_object
from forge.serve.upload.files import (
    CLAIM,
    CONFLICT,
    DAMAGED,
    DIGEST,
    FULL,
    SAME,
    DamagedFile,
    Digests,
    DiskFull,
    read_manifest,
)
from forge.serve.weights import Weights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from forge.config.schema import ServeTable
    from forge.serve.replicas import Replicas
    from forge.serve.upload.files import Manifest, WeightFile

    Handler = Callable[[Request], Awaitable[dict[str, Any]]]

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
"""Maximum size of a manifest, or of the tokens of a probe."""
SILENT_S = 30.0
"""Maximum pause between two pieces of a file; the client then sends it again."""
WRITE_BYTES = 4 << 20
"""Bytes that are collected before a thread writes them and adds them to the digest."""
RESERVE_BYTES = 1 << 30
"""Free bytes that no upload may take."""
CLAIM_SILENT_S = 120.0
"""Silence after which another run may publish."""


class WeightEndpoints:
    """The routes of one server."""

    def __init__(
        self, replicas: Replicas, *, start: Weights, table: ServeTable, folder: Path, forge: str
    ) -> None:
        """`start`: what the engines serve now; `forge`: the version of forge here."""
        self._replicas = replicas
        self._table = table
        self._forge = forge
        self._claims = Claims()
        self._held = HeldFiles(folder)
        self._digests = Digests()
        self._own = [path for path in (start.full, start.adapter) if path is not None]
        self._made: dict[tuple[object, ...], Path] = {}
        self._loading = anyio.Lock()

    def routes(self) -> list[Route]:
        """The routes, as in the head of this file."""
        from starlette.routing import Route

        posts: dict[str, Handler] = {
            "/weights/claim": self._claim,
            "/weights/release": self._release,
            "/weights/files": self._files,
            "/weights": self._load,
            "/weights/scores": self._scores,
        }
        routes = [Route(path, _answered(each), methods=["POST"]) for path, each in posts.items()]
        receive = Route("/weights/files/{digest}", _answered(self._receive), methods=["PUT"])
        return [*routes, receive]

    def require_claim(self, request: Request) -> None:
        """Raise Refused for a run that publishes here no longer; other clients have no claim."""
        if CLAIM in request.headers:
            self._require(request)

    def _require(self, request: Request) -> None:
        """Raise Refused without the claim."""
        self._claims.require(request.headers.get(CLAIM, ""), now=time.monotonic())

    async def _body(self, request: Request) -> dict[str, Any]:
        """The body of a run that has the claim. Raises Refused."""
        body = await read_object(request, max_bytes=MAX_BODY_BYTES)
        self._require(request)
        return body

    async def _claim(self, request: Request) -> dict[str, Any]:
        body = await read_object(request, max_bytes=MAX_BODY_BYTES)
        owner, forge = body.get("owner"), body.get("forge")
        if not isinstance(owner, str) or not 0 < len(owner) <= 500:
            raise ConfigError("owner: a text of 1 to 500 characters")
        if forge != self._forge:
            raise Refused(CONFLICT, f"here is forge {self._forge}, the run has {forge}; {SAME}")
        key = self._claims.take(owner, now=time.monotonic())
        logger.info("%s publishes here", owner)
        await self._know_own()
        return {
            "claim": key,
            "precision": str(self._table.precision),
            "context_tokens": self._table.context_tokens,
            "features": sorted(self._replicas.features),
        }

    async def _know_own(self) -> None:
        """Read the digests of the model that was here before, once."""
        while self._own:
            directory = self._own.pop()
            try:
                manifest = await anyio.to_thread.run_sync(self._digests.manifest, directory)
            except ConfigError as error:  # pickles: the run sends its own files
                logger.info("%s", error)
                continue
            self._held.know(directory, manifest)

    async def _release(self, request: Request) -> dict[str, Any]:
        await self._body(request)
        self._claims.release()
        return {}

    async def _files(self, request: Request) -> dict[str, Any]:
        manifest = read_manifest((await self._body(request)).get("files"))
        return {"missing": await anyio.to_thread.run_sync(self._held.missing, manifest)}

    async def _receive(self, request: Request) -> dict[str, Any]:
        """Receive a file. One that does not arrive whole is dropped."""
        self._require(request)
        digest, size = request.path_params["digest"], request.query_params.get("num_bytes", "")
        if not re.fullmatch(DIGEST, digest) or not size.isdecimal():
            raise ConfigError("a SHA-256, and num_bytes from 0")
        await self._held.receive(digest, self._pieces(request), num_bytes=int(size))
        return {}

    async def _pieces(self, request: Request) -> AsyncIterator[bytes]:
        """The body in pieces of WRITE_BYTES. Raises Refused if it stops."""
        stream, collected = aiter(request.stream()), bytearray()
        chunk: bytes | None = b""
        while chunk is not None:
            try:
                with anyio.fail_after(SILENT_S):
                    chunk = await anext(stream, None)
            except TimeoutError as error:
                raise Refused(408, f"nothing arrived for {SILENT_S:.0f} s") from error
            collected += chunk or b""
            if chunk is None or len(collected) >= WRITE_BYTES:
                self._require(request)  # also renews the claim during a long file
                yield bytes(collected)
                collected.clear()

    async def _load(self, request: Request) -> dict[str, Any]:
        body, began = await self._body(request), time.monotonic()
        version, full_version = (_version(body, name) for name in ("version", "full_version"))
        async with self._loading:
            full = await self._directory(body.get("full"), version=full_version)
            adapter = body.get("adapter")
            if adapter is not None:
                adapter = await self._directory(adapter, version=version)
            weights = Weights(
                full=full, adapter=adapter, version=version, full_version=full_version
            )
            try:
                await self._replicas.publish_weights(weights)
            finally:
                await anyio.to_thread.run_sync(self._forget_others)
        seconds = time.monotonic() - began
        logger.info("version %d is served (%.3f s)", version, seconds)
        return {"version": version, "seconds": seconds}

    async def _directory(self, found: object, *, version: int) -> Path:
        """A directory of these files; the same one for the same files and version."""
        manifest = read_manifest(found)
        key = (manifest, version)
        if key not in self._made:
            self._made[key] = await anyio.to_thread.run_sync(
                partial(self._held.assemble, manifest, version=version)
            )
        return self._made[key]

    def _forget_others(self) -> None:
        """Delete what no engine serves or would start with."""
        weights = self._replicas.weights
        served = [path for path in (weights.full, weights.adapter) if path is not None]
        self._made = {key: path for key, path in self._made.items() if path in served}
        self._held.keep_only(served)

    async def _scores(self, request: Request) -> dict[str, Any]:
        body = await self._body(request)
        ids = [body.get(name) for name in ("prompt_ids", "completion_ids")]
        if not all(isinstance(each, list) for each in ids):
            raise ConfigError("allowed is {prompt_ids, completion_ids}: lists of integers")
        return {"logprobs": await self._replicas.probe(ids[0] or [], ids[1] or [])}


def _answered(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Refuse with every ForgeError in one line with its status."""

    async def endpoint(request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            return JSONResponse(await handler(request))
        except ForgeError as error:
            statuses = {ConfigError: 400, DamagedFile: DAMAGED, DiskFull: FULL}
            found = [each for kind, each in statuses.items() if isinstance(error, kind)]
            raise Refused(found[0] if found else 503, str(error)) from error

    return endpoint


def _version(body: dict[str, Any], name: str) -> int:
    found = body.get(name)
    if type(found) is not int or found < 0:
        raise ConfigError(f"{name}: found {found!r}; an integer from 0")
    return found


class HeldFiles:
    """The folder of one server process."""

    def __init__(
        self,
        folder: Path,
        *,
        free_bytes: Callable[[Path], int] = lambda p: shutil.disk_usage(p).free,
    ) -> None:
        self._blobs, self._weights = folder / "blobs", folder / "weights"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._weights.mkdir(exist_ok=True)
        self._free_bytes = free_bytes
        self._elsewhere: dict[str, Path] = {}
        self._num_begun = self._num_made = 0
        self._lock = threading.Lock()

    def know(self, directory: Path, manifest: Manifest) -> None:
        """Files of a directory that is here anyway and need not be sent."""
        with self._lock:
            self._elsewhere |= {file.sha256: directory / file.name for file in manifest}

    def missing(self, manifest: Manifest) -> list[str]:
        """Digests of the files that are not here. Raises DiskFull if all have no room."""
        with self._lock:
            wanted = {file.sha256: file for file in manifest if self._find(file) is None}
            self._require_room(sum(file.num_bytes for file in wanted.values()))
        return list(wanted)

    def _require_room(self, needed: int) -> None:
        free = max(self._free_bytes(self._blobs) - RESERVE_BYTES, 0)
        if needed > free:
            raise DiskFull(
                f"disk full: the upload needs {needed / 1e9:.2f} GB in {self._blobs}, "
                f"{free / 1e9:.2f} GB are available"
            )

    async def receive(self, digest: str, pieces: AsyncIterator[bytes], *, num_bytes: int) -> None:
        """Keep the file that arrives. Raises DamagedFile for other content than its digest's,
        DiskFull, and MachineError if it cannot be written."""
        self._require_room(num_bytes)
        self._num_begun += 1
        path, found, received = (
            self._blobs / f"{digest}.{self._num_begun}.part",
            hashlib.sha256(),
            0,
        )

        def put(data: bytes) -> None:
            with path.open("ab") as file:
                file.write(data)
            found.update(data)

        try:
            async for data in pieces:
                received += len(data)
                if received > num_bytes:
                    break
                await anyio.to_thread.run_sync(put, data)
            if received != num_bytes or found.hexdigest() != digest:
                raise DamagedFile(f"{digest[:12]}: the bytes that arrived have another digest")
            with self._lock:
                path.rename(self._blobs / digest)
        except OSError as error:
            raise MachineError(f"{path.parent}: {error.strerror or error}") from error
        finally:
            path.unlink(missing_ok=True)

    def assemble(self, manifest: Manifest, *, version: int) -> Path:
        """A directory with these files. Raises ConfigError if one is not here."""
        with self._lock:
            found = {file.name: self._find(file) for file in manifest}
            if absent := [name for name, path in found.items() if path is None]:
                raise ConfigError(f"{len(absent)} files were not sent, the first is {absent[0]}")
            self._num_made += 1
            directory = self._weights / f"{self._num_made}-v{version}"
            directory.mkdir()
            for name, path in found.items():
                assert path is not None
                os.symlink(path.absolute(), directory / name)
            return directory

    def keep_only(self, directories: Collection[Path]) -> None:
        """Delete other directories, and the whole files that only they used."""
        with self._lock:
            for directory in self._weights.iterdir():
                if directory not in directories:
                    shutil.rmtree(directory, ignore_errors=True)
            links = [link for each in self._weights.iterdir() for link in each.iterdir()]
            used = {os.readlink(link) for link in links}
            for blob in self._blobs.iterdir():
                if blob.suffix != ".part" and str(blob.absolute()) not in used:
                    blob.unlink(missing_ok=True)

    def _find(self, file: WeightFile) -> Path | None:
        for path in (self._blobs / file.sha256, self._elsewhere.get(file.sha256)):
            if path is not None and path.is_file() and path.stat().st_size == file.num_bytes:
                return path
        return None


class Claims:
    """At most one run that may publish."""

    def __init__(self) -> None:
        self._owner: str = ""
        self._key: str = ""
        self._seen_at = 0.0

    def take(self, owner: str, *, now: float) -> str:
        """The key of a new claim, which ends the one before: a secret of this attempt of a run,
        which every request repeats. Raises Refused while another run publishes.

        Args:
            owner: run, machine and directory, for messages; the same after `forge resume`.
        """
        silent_s = now - self._seen_at
        if self._key and owner != self._owner and silent_s < CLAIM_SILENT_S:
            raise Refused(
                CONFLICT,
                f"{self._owner} publishes here (last seen {silent_s:.0f} s ago); one run at a "
                f"time: stop it, use another server, or wait until it was silent for "
                f"{CLAIM_SILENT_S:.0f} s",
            )
        self._owner, self._key, self._seen_at = owner, secrets.token_hex(16), now
        return self._key

    def require(self, key: str, *, now: float) -> None:
        """Raise Refused unless `key` is that of the claim, whose time begins again."""
        if not self._key:
            why = "no run publishes here: claim the server first (it was started again)"
            raise Refused(CONFLICT, why)
        if not secrets.compare_digest(self._key.encode(), key.encode()):
            raise Refused(CONFLICT, f"{self._owner} publishes here now")
        self._seen_at = now

    def release(self) -> None:
        """End the claim."""
        self._key = ""
