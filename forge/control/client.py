"""Speaking to a running supervisor: `status` and `stop`. Used by the CLI and the TUI.

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
            answer = json.loads(response.read())
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
        if response.status != 200:
            raise ConfigError(
                f"{self._path}: {method} {path}: {answer.get('error', response.reason)}"
            )
        return answer


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, *, timeout_s: float) -> None:
        super().__init__("forge", timeout=timeout_s)
        self._socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket_path))
