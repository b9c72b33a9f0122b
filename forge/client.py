"""`forge.client.Judge`: a client of `forge judge --serve`, with the standard library alone.

    judge = forge.client.Judge("http://127.0.0.1:8200", token="secret")
    verdict = judge.judge(problem, answer)

Safe in any number of threads; each request has a connection of its own. Promise: a call ends with a
verdict on the answer, or with an error: Unavailable after `patience_s` of a full or starting server
or a faulty machine, and after GONE_S without a connection; ConfigError for a request that the
server refuses. A fault never has a score.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from forge.adapters.verdict import Reward, Verdict
from forge.errors import ConfigError, MachineError
from forge.process.ask import UNIX_PREFIX, UnixConnection

CONNECT_TIMEOUT_S = 10.0
SHORTEST_TIMEOUT_S = 0.01
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
"""Maximum pause between two attempts, whatever the server asks for."""
GONE_S = 60.0
"""Time without a connection after which a server counts as gone. One that starts answers 503."""
MAX_CONCURRENT = 128
"""Maximum number of threads of `judge_many`."""
MAX_BODY_BYTES = 16 << 20
"""Largest request that a server takes."""
MAX_MESSAGE = 500


class Unavailable(MachineError):
    """The server gave no verdict: it is full, its judges fail, or it does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A verdict with its reward."""

    verdict: Verdict
    """The verdict."""
    reward: Reward
    """Its reward, under the weights of the call."""


class Judge:
    """Judges at a URL: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`."""

    def __init__(self, url: str, token: str | None = None, *, patience_s: float = 600.0) -> None:
        """A client; connects at the first call.

        Args:
            token: FORGE_JUDGE_TOKEN of the server.
            patience_s: maximum time of one call, in seconds, with all its attempts. A server that
                is gone ends a call after 60 s.

        Raises:
            ConfigError: a URL of another form, or a token with characters that no header has.
        """
        if not url.startswith((UNIX_PREFIX, "http://", "https://")):
            raise ConfigError(f"url: found {url[:80]!r}; http://HOST:PORT or unix:/PATH")
        self._url = url.rstrip("/")
        self._patience_s = patience_s
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            is_sendable = token.isprintable() and max(token, default="") <= "\xff"  # Latin-1
            if not is_sendable:  # http.client would show it
                raise ConfigError("token: found a character that no header may have")
            self._headers["Authorization"] = f"Bearer {token}"
        try:
            self._idle = [_open_connection(self._url)]
        except (ValueError, http.client.InvalidURL) as error:
            raise ConfigError(f"url: found {url[:80]!r}: {error}") from None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    def close(self) -> None:
        """Closes the connections that no call uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def judge(
        self, problem: str | Path, answer: str | Path, *, timed: bool | None = None, **more: Any
    ) -> Verdict:
        """The verdict on one answer.

        Args:
            problem: its source, its name on the server, or the `Path` of a file here.
            answer: code or a whole answer; a `Path` is read here.
            timed: time a correct answer. Absent: if the server has GPUs.
            more: `entry_point` and `precision` of a problem's source.

        Raises:
            Unavailable: no verdict within `patience_s`.
            ConfigError: the server refuses the request.
        """
        body = {"problem": _text(problem), "answer": _text(answer), "timed": timed, **more}
        return Verdict.from_json(self._ask("POST", "/v1/judge", body)["verdict"])

    def score(
        self,
        problem: str | Path,
        answer: str | Path,
        *,
        weights: Mapping[str, Any] | None = None,
        timed: bool | None = None,
        **more: Any,
    ) -> Scored:
        """The verdict and the reward; arguments and errors as of `judge`, weights as of
        `forge.reward`."""
        wanted = {"reward": True, "weights": None if weights is None else dict(weights)}
        texts = {"problem": _text(problem), "answer": _text(answer)}
        found = self._ask("POST", "/v1/judge", {**texts, **wanted, "timed": timed, **more})
        return Scored(
            verdict=Verdict.from_json(found["verdict"]), reward=Reward.from_json(found["reward"])
        )

    def judge_many(
        self,
        pairs: Iterable[tuple[str | Path, str | Path]],
        *,
        timed: bool | None = None,
        concurrency: int | None = None,
    ) -> Iterator[Verdict]:
        """Verdicts in the order of the pairs, each as soon as it and those before it are there.

        Args:
            concurrency: requests in flight; absent: as many as the server's judges can use.

        Raises:
            Unavailable: as of `judge`; further requests are not sent then.
        """
        texts = [(_text(problem), _text(answer)) for problem, answer in pairs]
        most = concurrency or int(self.health()["capacity"])
        threads = ThreadPoolExecutor(max(1, min(most, MAX_CONCURRENT, len(texts))))
        futures = [threads.submit(self.judge, *each, timed=timed) for each in texts]
        return _in_order(threads, futures)

    def health(self) -> dict[str, Any]:
        """State of the server: ok, capacity, judges, ... Raises Unavailable."""
        return self._ask("GET", "/v1/health", None)

    def problems(self) -> list[str]:
        """Names of the problems that the server knows. Raises Unavailable."""
        return self._ask("GET", "/v1/problems", None)["problems"]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to a request, which is repeated until it is one or the patience ends."""
        content = None if body is None else json.dumps(body).encode()
        if content is not None and len(content) > MAX_BODY_BYTES:
            raise ConfigError(f"the request has {len(content)} bytes; {MAX_BODY_BYTES} are allowed")
        deadline, pause_s = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        gone_by: float | None = None
        while True:
            left_s = deadline - time.monotonic()
            try:
                status, found, asked_s = self._send(method, path, content, timeout_s=left_s)
                gone_by = None
            except (OSError, http.client.HTTPException, ValueError) as error:
                status, asked_s = 503, pause_s
                gone_by = gone_by or time.monotonic() + GONE_S
                found = {"error": f"{type(error).__name__}: {error}"}
            if status == 200:
                return found
            message = " ".join(str(found.get("error", f"HTTP {status}")).split())[:MAX_MESSAGE]
            if status < 500:
                raise ConfigError(f"{self._url}{path}: HTTP {status}: {message}")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            wait_s = min(asked_s or pause_s, LONGEST_PAUSE_S)
            next_at = time.monotonic() + wait_s
            if gone_by is not None and next_at > gone_by:
                raise Unavailable(f"{self._url}: gone for {GONE_S:g} s; the last: {message}")
            if next_at > deadline:
                raise Unavailable(
                    f"{self._url}: no answer within {self._patience_s:g} s; the last: {message}"
                )
            time.sleep(wait_s)

    def _send(
        self, method: str, path: str, content: bytes | None, *, timeout_s: float
    ) -> tuple[int, dict[str, Any], float | None]:
        """Status, JSON and Retry-After of an answer. Raises OSError, HTTPException, ValueError."""
        timeout_s = max(timeout_s, SHORTEST_TIMEOUT_S)
        with self._lock:
            connection = self._idle.pop() if self._idle else _open_connection(self._url)
        try:
            if connection.sock is None:
                connection.timeout = min(CONNECT_TIMEOUT_S, timeout_s)
                connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(timeout_s)
            connection.request(method, path, body=content, headers=self._headers)
            with connection.getresponse() as response:
                found = _parse(response.read(), is_answer=response.status == 200)
        except BaseException:
            connection.close()
            self.close()  # a server that was started again, or a long pause, has ended them all
            raise
        with self._lock:
            self._idle.append(connection)
        asked = response.headers.get("Retry-After", "")
        return response.status, found, float(asked) if asked.isdecimal() else None


def _parse(content: bytes, *, is_answer: bool) -> dict[str, Any]:
    """The object in an answer. Raises ValueError for other content, unless it is an error's."""
    try:
        found: Any = json.loads(content)
    except ValueError:
        if is_answer:
            raise
        return {"error": content[:MAX_MESSAGE].decode(errors="replace")}
    if not isinstance(found, dict):
        raise ValueError(f"found {type(found).__name__}; an object is expected")
    return found  # pyright: ignore[reportUnknownVariableType]


def _in_order(threads: ThreadPoolExecutor, futures: list[Future[Verdict]]) -> Iterator[Verdict]:
    try:
        for future in futures:
            yield future.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _text(given: str | Path) -> str:
    """A text, or that of a file. Raises ConfigError."""
    if not isinstance(given, Path):
        return given
    try:
        return given.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{given}: cannot be read: {error}") from error


def _open_connection(url: str) -> http.client.HTTPConnection:
    """A connection that connects at its first request. Raises ValueError for no URL."""
    if url.startswith(UNIX_PREFIX):
        return UnixConnection(Path(url.removeprefix(UNIX_PREFIX)))
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port)
