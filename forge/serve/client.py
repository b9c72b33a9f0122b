# pyright: strict
"""The client of one engine: token ids in, completions out, over its Unix socket or a URL.

Promise: every call has a deadline and ends with an answer or with an error that names the engine
(ChildDied: it hung up; Stalled: it was silent; ConfigError: it refused; MachineError: it failed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import numpy as np

from forge.errors import ConfigError, MachineError
from forge.process.ask import error_message, open_client, open_url_client, parse_content, send
from forge.process.strict_json import parse_json
from forge.records import Completion, Finish
from forge.serve.wire import COMPACT, MAGIC, unpack

T = TypeVar("T")

ACCEPT = {"Accept": COMPACT}
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Errors of reading an answer of another shape."""
SHORT_TIMEOUT_S = 10.0
"""Maximum wait for /health."""


class ReplicaClient:
    """A client of one engine. Call `aclose` when done, or use it in `async with`."""

    def __init__(
        self, address: Path | str, *, name: str = "", timeout_s: float = 300.0,
        token: str | None = None,
    ) -> None:  # fmt: skip
        """`address`: path of the engine's socket, or a URL, which asks for `token`."""
        self.timeout_s = timeout_s
        if isinstance(address, str):
            self.name = name or address
            self._http = open_url_client(address, timeout_s=timeout_s, token=token)
        else:
            self.name = name or address.stem
            self._http = open_client(address, timeout_s=timeout_s)

    async def __aenter__(self) -> ReplicaClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(SHORT_TIMEOUT_S):
            await self._http.aclose()

    async def complete(
        self, prompt_ids: Sequence[int], *, n: int = 1, max_tokens: int, temperature: float = 1.0,
        seed: int = 0, stop_token_ids: Sequence[int] = (),
    ) -> list[Completion]:  # fmt: skip
        """Sample `n` continuations of a prompt, in the order of their index."""
        settings = {"n": n, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        body = {"prompt": list(prompt_ids), "stop_token_ids": list(stop_token_ids), **settings}
        return await self._ask("/v1/completions", body, parse=_completions, headers=ACCEPT)

    async def load_weights(self, path: Path, *, version: int) -> float:
        """Serve the weights of a directory as `version`. Returns the engine's seconds for it."""
        body = {"path": str(path.absolute()), "version": version}
        found, seconds = await self._ask("/weights", body, parse=_acknowledged)
        if found != version:
            raise MachineError(f"{self.name} acknowledged version {found}; requested was {version}")
        return seconds

    async def score(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        """Log probability of each completion token at temperature 1, teacher forced."""
        body = {"prompt_ids": list(prompt_ids), "completion_ids": list(completion_ids)}
        return await self._ask("/score", body, parse=_logprobs)

    async def health(self) -> dict[str, Any]:
        answer = await send(
            self._http, "GET", "/health", server=self.name, timeout_s=SHORT_TIMEOUT_S
        )
        try:
            found = dict(answer.json())
            return {**found, "features": list(found["features"])}
        except MALFORMED as error:
            raise _unreadable(self.name, error) from error

    async def sleep(self) -> None:
        """Release the engine's GPU memory. It answers nothing until `wake`."""
        await self._ask("/sleep", {})

    async def wake(self) -> None:
        await self._ask("/wake", {})

    async def _ask(
        self, path: str, body: Mapping[str, Any], *, parse: Callable[[bytes], T] = parse_json,
        headers: Mapping[str, str] | None = None,
    ) -> T:  # fmt: skip
        response = await send(
            self._http, "POST", path, body,
            server=self.name, timeout_s=self.timeout_s, headers=headers,
        )  # fmt: skip
        if response.status != 200:
            kind = ConfigError if 400 <= response.status < 500 else MachineError
            raise kind(f"{self.name}: {error_message(response.content)}")
        try:
            return await parse_content(response.content, parse)
        except MALFORMED as error:
            raise _unreadable(self.name, error) from error


def _unreadable(name: str, error: Exception) -> MachineError:
    return MachineError(f"{name}: its answer is not an engine's: {error!r}"[:300])


def _acknowledged(content: bytes) -> tuple[int, float]:
    found = parse_json(content)
    return int(found["version"]), float(found["seconds"])


def _logprobs(content: bytes) -> list[float]:
    return [float(each) for each in parse_json(content)["logprobs"]]


def _completions(content: bytes) -> list[Completion]:
    if content.startswith(MAGIC):
        return unpack(content)
    return [_completion(choice) for choice in parse_json(content)["choices"]]


def _completion(choice: Mapping[str, Any]) -> Completion:
    return Completion(
        token_ids=tuple(choice["token_ids"]),
        # In the precision of the store and of `wire`.
        logprobs=tuple(np.asarray(choice["logprobs"]["token_logprobs"], np.float32).tolist()),
        finish=Finish(choice["finish_reason"]),
        min_version=choice["min_version"],
        max_version=choice["max_version"],
    )
