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
import secrets
import shutil
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.errors import ConfigError, ForgeError, MachineError, Stalled
from forge.process.server.door import Refused, read_object
from forge.serve.upload.files import (
    CLAIM,
    CONFLICT,
    DAMAGED,
    DIGEST,
    FULL,
    SAME,
    Digests,
    read_manifest,
)
from forge.serve.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from forge.serve.upload.files import Manifest, WeightFile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from forge.config.schema import ServeTable
    from forge.serve.replicas import Replicas

    Handler = Callable[[Request, dict[str, Any]], Awaitable[dict[str, Any]]]

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

        def post(path: str, handler: Handler) -> Route:
            return Route(path, _answered(handler), methods=["POST"])

        return [
            post("/weights/claim", self._claim),
            post("/weights/release", self._release),
            post("/weights/files", self._files),
            Route("/weights/files/{digest}", self._receive, methods=["PUT"]),
            post("/weights", self._load),
            post("/weights/scores", self._scores),
        ]

    def require_claim(self, request: Request) -> None:
        """Raise Refused for a run that publishes here no longer; other clients have no claim."""
        key = request.headers.get(CLAIM)
        if key is not None and (why := self._claims.refusal(key, now=time.monotonic())):
            raise Refused(CONFLICT, why)

    async def _claim(self, _request: Request, body: dict[str, Any]) -> dict[str, Any]:
        owner, forge = body.get("owner"), body.get("forge")
        if not isinstance(owner, str) or not 0 < len(owner) <= 500:
            raise ConfigError("owner: a text of 1 to 500 characters")
        if forge != self._forge:
            raise Refused(CONFLICT, f"here is forge {self._forge}, the run has {forge}; {SAME}")
        claim = self._claims.take(owner, now=time.monotonic())
        if isinstance(claim, str):
            raise Refused(CONFLICT, claim)
        logger.info("%s publishes here", owner)
        await self._know_own()
        return {
            "claim": claim.key,
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

    async def _release(self, request: Request, _body: dict[str, Any]) -> dict[str, Any]:
        self._claims.release(request.headers.get(CLAIM, ""))
        return {}

    async def _files(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self._require(request)
        manifest = read_manifest(body.get("files"))
        return {"missing": await anyio.to_thread.run_sync(self._held.missing, manifest)}

    async def _receive(self, request: Request) -> Response:
        """Receive a file. One that does not arrive whole is dropped."""
        from starlette.responses import JSONResponse

        self._require(request)
        digest, num_bytes = _place(request)
        upload = self._held.begin(digest)
        try:
            await self._write(request, upload)
            await anyio.to_thread.run_sync(
                partial(self._held.finish, digest, upload, num_bytes=num_bytes)
            )
        except ConfigError as error:
            raise Refused(DAMAGED, str(error)) from error
        except MachineError as error:
            raise Refused(FULL, str(error)) from error
        finally:
            upload.path.unlink(missing_ok=True)
        return JSONResponse({})

    async def _write(self, request: Request, upload: Upload) -> None:
        """Write what arrives."""
        collected = bytearray()

        async def put() -> None:
            await anyio.to_thread.run_sync(partial(self._held.write, upload, bytes(collected)))
            collected.clear()

        stream = aiter(request.stream())
        try:
            while True:
                with anyio.fail_after(SILENT_S):
                    chunk = await anext(stream, None)
                if chunk is None:
                    break
                collected += chunk
                if len(collected) >= WRITE_BYTES:
                    await put()
                self._require(request)  # also renews the claim during a long file
        except TimeoutError as error:
            raise Refused(408, f"nothing arrived for {SILENT_S:.0f} s") from error
        await put()

    async def _load(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self._require(request)
        version, full_version = (_version(body, name) for name in ("version", "full_version"))
        began = time.monotonic()
        async with self._loading:
            full = await self._directory(body.get("full"), version=full_version)
            adapter = body.get("adapter")
            weights = Weights(
                full=full,
                adapter=None
                if adapter is None
                else await self._directory(adapter, version=version),
                version=version,
                full_version=full_version,
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

    async def _scores(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        self._require(request)
        ids = [body.get(name) for name in ("prompt_ids", "completion_ids")]
        if not all(isinstance(each, list) for each in ids):
            raise ConfigError("allowed is {prompt_ids, completion_ids}: lists of integers")
        return {"logprobs": await self._replicas.probe(ids[0] or [], ids[1] or [])}

    def _require(self, request: Request) -> None:
        """Raise Refused without the claim."""
        why = self._claims.refusal(request.headers.get(CLAIM, ""), now=time.monotonic())
        if why:
            raise Refused(CONFLICT, why)


def _answered(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Read the body, and refuse with every ForgeError in one line with its status."""

    async def endpoint(request: Request) -> Response:
        from starlette.responses import JSONResponse

        body = await read_object(request, max_bytes=MAX_BODY_BYTES)
        try:
            return JSONResponse(await handler(request, body))
        except ConfigError as error:
            raise Refused(400, str(error)) from error
        except MachineError as error:
            status = FULL if "disk full" in str(error) else 503
            raise Refused(status, str(error)) from error
        except (Stalled, ForgeError) as error:
            raise Refused(503, str(error)) from error

    return endpoint


def _version(body: dict[str, Any], name: str) -> int:
    found = body.get(name)
    if type(found) is not int or found < 0:
        raise ConfigError(f"{name}: found {found!r}; an integer from 0")
    return found


def _place(request: Request) -> tuple[str, int]:
    """Digest and size of an upload."""
    digest = request.path_params["digest"]
    try:
        size = int(request.query_params["num_bytes"])
    except (KeyError, ValueError) as error:
        raise Refused(400, f"{error}: num_bytes is an integer") from error
    if not DIGEST.fullmatch(digest) or size < 0:
        raise Refused(400, "a SHA-256, and num_bytes from 0")
    return digest, size


@dataclass(slots=True, kw_only=True, eq=False)
class Upload:
    """One file on its way."""

    path: Path
    digest: Any = field(default_factory=hashlib.sha256)
    received: int = 0


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
        """Digests of the files that are not here. Raises MachineError if the disk is too full."""
        with self._lock:
            wanted = {file.sha256: file for file in manifest if self._find(file) is None}
            needed = sum(file.num_bytes for file in wanted.values())
            free = self._free_bytes(self._blobs) - RESERVE_BYTES
        if needed > max(free, 0):
            raise MachineError(
                f"disk full: the upload needs {needed / 1e9:.2f} GB in {self._blobs}, "
                f"{max(free, 0) / 1e9:.2f} GB are available"
            )
        return list(wanted)

    def begin(self, digest: str) -> Upload:
        """A file that arrives, under a name of its own."""
        self._num_begun += 1
        upload = Upload(path=self._blobs / f"{digest}.{self._num_begun}.part")
        upload.path.touch()
        return upload

    def write(self, upload: Upload, data: bytes) -> None:
        """The next bytes. Raises MachineError if they cannot be written, also since they would take
        the last free bytes, whatever size was declared."""
        if len(data) > self._free_bytes(self._blobs) - RESERVE_BYTES:
            raise MachineError(f"disk full: {RESERVE_BYTES / 1e9:.2f} GB are kept free")
        try:
            with upload.path.open("ab") as file:
                file.write(data)
        except OSError as error:
            raise MachineError(f"{upload.path.parent}: {error.strerror or error}") from error
        upload.digest.update(data)
        upload.received += len(data)

    def finish(self, digest: str, upload: Upload, *, num_bytes: int) -> None:
        """The file is whole and here now. Raises ConfigError for other content."""
        if upload.received != num_bytes or upload.digest.hexdigest() != digest:
            raise ConfigError(f"{digest[:12]}: the bytes that arrived have another digest")
        with self._lock:
            upload.path.rename(self._blobs / digest)

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
            used = set(_targets(directories))
            for blob in self._blobs.iterdir():
                if blob.suffix != ".part" and str(blob.absolute()) not in used:
                    blob.unlink(missing_ok=True)

    def _find(self, file: WeightFile) -> Path | None:
        for path in (self._blobs / file.sha256, self._elsewhere.get(file.sha256)):
            if path is not None and path.is_file() and path.stat().st_size == file.num_bytes:
                return path
        return None


def _targets(directories: Iterable[Path]) -> Iterable[str]:
    for directory in directories:
        for link in directory.iterdir() if directory.is_dir() else ():
            if link.is_symlink():
                yield os.readlink(link)


@dataclass(slots=True, kw_only=True)
class PublishClaim:
    """The run that publishes."""

    owner: str
    """Run, machine and directory, for messages; the same after `forge resume`."""
    key: str
    """Secret of this attempt of the run, which every request repeats."""
    seen_at: float


class Claims:
    """At most one claim."""

    def __init__(self) -> None:
        self._claim: PublishClaim | None = None

    def take(self, owner: str, *, now: float) -> PublishClaim | str:
        """A new claim, which ends the one before; or the reason why not."""
        held = self._claim
        if held is not None and held.owner != owner and now - held.seen_at < CLAIM_SILENT_S:
            return (
                f"{held.owner} publishes here (last seen {now - held.seen_at:.0f} s ago); one run "
                f"at a time: stop it, use another server, or wait until it was silent for "
                f"{CLAIM_SILENT_S:.0f} s"
            )
        self._claim = PublishClaim(owner=owner, key=secrets.token_hex(16), seen_at=now)
        return self._claim

    def refusal(self, key: str, *, now: float) -> str:
        """Empty if `key` is that of the claim, whose time begins again; else the reason."""
        held = self._claim
        if held is not None and secrets.compare_digest(held.key.encode(), key.encode()):
            held.seen_at = now
            return ""
        if held is None:
            return "no run publishes here: claim the server first (it was started again)"
        return f"{held.owner} publishes here now"

    def release(self, key: str) -> None:
        """End the claim, if it has this key."""
        if self._claim is not None and secrets.compare_digest(
            self._claim.key.encode(), key.encode()
        ):
            self._claim = None
