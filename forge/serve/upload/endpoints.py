# pyright: strict
"""The endpoints by which a run on another machine publishes: part of `forge serve --weights`.

Added to `front`, behind the door, so that each request has the server's token. Promises: engines
load only files that are complete and have their digest; refused weights leave the old ones serving;
a request of a run that does not hold the claim is refused with the name of the one that does.

    POST /weights/claim    {owner, forge} -> {claim, precision, context_tokens, features}
    POST /weights/release  {}
    POST /weights/files    {files} -> {missing: {sha256: bytes received}}
    PUT  /weights/files/SHA256?offset=N&num_bytes=M   bytes from N on -> {received}
    POST /weights          {version, full, full_version, adapter} -> {version, seconds}
    POST /weights/scores   {prompt_ids, completion_ids} -> {logprobs}: a list from each replica

All but the first carry the claim in the header CLAIM.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from forge.errors import ConfigError, ForgeError, MachineError, Stalled
from forge.process.server.door import Refused, read_object
from forge.serve.upload.claims import Claims
from forge.serve.upload.held import HeldFiles, LostPlace, Upload
from forge.serve.upload.manifest import DIGEST, Digests, read_manifest
from forge.serve.upload.protocol import CLAIM, CONFLICT, DAMAGED, FULL, SAME
from forge.serve.weights import Weights

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
"""Maximum pause between two pieces of an upload; the client continues it by another request."""
WRITE_BYTES = 4 << 20
"""Bytes that are collected before a thread writes them and adds them to the digest."""


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
        self._owner = ""
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
        if owner != self._owner:  # the same run, resumed, continues its uploads
            await anyio.to_thread.run_sync(self._held.drop_partial)
            self._owner = owner
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
        """One file from a byte on, to its end or as far as it comes."""
        from starlette.responses import JSONResponse

        self._require(request)
        digest, offset, num_bytes = _place(request)
        try:
            upload, writer = await anyio.to_thread.run_sync(
                partial(self._held.begin, digest, offset=offset)
            )
            await self._write(request, upload, writer)
            await anyio.to_thread.run_sync(
                partial(self._held.finish, digest, upload, writer=writer, num_bytes=num_bytes)
            )
        except LostPlace as error:
            raise Refused(CONFLICT, str(error)) from error
        except ConfigError as error:
            raise Refused(DAMAGED, str(error)) from error
        except MachineError as error:
            raise Refused(FULL, str(error)) from error
        return JSONResponse({"received": upload.received})

    async def _write(self, request: Request, upload: Upload, writer: int) -> None:
        """Write what arrives. What has arrived when the client hangs up is kept."""
        from starlette.requests import ClientDisconnect

        collected = bytearray()

        async def put() -> None:
            await anyio.to_thread.run_sync(
                partial(self._held.write, upload, bytes(collected), writer=writer)
            )
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
        except ClientDisconnect:
            await put()
            raise
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


def _place(request: Request) -> tuple[str, int, int]:
    """Digest, first byte and size of an upload."""
    digest = request.path_params["digest"]
    try:
        offset, size = (int(request.query_params[name]) for name in ("offset", "num_bytes"))
    except (KeyError, ValueError) as error:
        raise Refused(400, f"{error}: offset and num_bytes are integers") from error
    if not DIGEST.fullmatch(digest) or not 0 <= offset <= size:
        raise Refused(400, "a SHA-256, and an offset from 0 to num_bytes")
    return digest, offset, size
