"""Speaking to a running supervisor: `status`, `stop`, `save`, `evaluate`. Used by the CLI and the
TUI.

Blocking and small, on the standard library, so that `forge status` starts no event loop. Every call
has a deadline.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

from forge.control.records import LiveStatus
from forge.errors import ConfigError, Stalled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMEOUT_S = 5.0
"""The supervisor's loop never blocks for longer than a fraction of this."""
REFUSED = 400
"""What the supervisor says no to, with a line for people."""


class ControlClient:
    """One run's control socket."""

    def __init__(self, socket_path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s

    def status(self) -> LiveStatus:
        """What the run is doing. ConfigError if it is not running, Stalled if it is silent."""
        return LiveStatus.from_json(self._ask("GET", "/status"))

    def stop(self, *, reason: str = "forge stop") -> None:
        """As a first Ctrl-C: nothing new is admitted, the step ends, everything is saved."""
        self._ask("POST", "/stop", {"reason": reason})

    def save(self) -> str:
        """A checkpoint that a resume can begin with, at the end of the step that runs. What will
        happen, in a line. ConfigError, in a line, where the run is in no training stage."""
        return self._ask("POST", "/save")["message"]

    def evaluate(self) -> str:
        """An evaluation of the policy after the step that runs, as `eval.every` makes them. What
        will happen, in a line. ConfigError, in a line, outside a grpo stage."""
        return self._ask("POST", "/evaluate")["message"]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        connection = _UnixConnection(self._path, timeout_s=self._timeout_s)
        try:
            connection.request(
                method,
                path,
                body=None if body is None else json.dumps(body),
                headers={"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read()
        except TimeoutError as error:
            raise Stalled(
                f"the supervisor at {self._path} was silent for {self._timeout_s:g} s; "
                f"asked: {method} {path}"
            ) from error
        except (ConnectionError, FileNotFoundError, http.client.HTTPException) as error:
            raise ConfigError(
                f"{self._path}: no supervisor answers there; it has ended or has just begun"
            ) from error
        finally:
            connection.close()
        answer = _json_object(text)
        if response.status == REFUSED and "error" in answer:
            raise ConfigError(answer["error"])
        if response.status != 200:
            words = answer.get("error", response.reason)
            raise ConfigError(f"{self._path}: {method} {path}: {words}")
        return answer


def _json_object(text: bytes) -> dict[str, Any]:
    """Empty for what is none, as the 404 of a supervisor of another version."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, *, timeout_s: float) -> None:
        super().__init__("forge", timeout=timeout_s)
        self._socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket_path))
