# pyright: strict
"""The client of a running supervisor, for the CLI and the TUI. Every call blocks, and has a
deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.control.records import LiveStatus
from forge.errors import ChildDied, ConfigError
from forge.process.ask import error_message, send_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMEOUT_S = 5.0
"""Maximum wait for an answer. The supervisor's loop never blocks for more than a fraction of it."""
REFUSED = 400
"""Status of a refusal, with one line for people."""


class ControlClient:
    """A client of one run's control socket. Every call raises ConfigError if no supervisor runs
    there, Stalled if it is silent."""

    def __init__(self, socket_path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s

    def status(self) -> LiveStatus:
        """Progress and components of the run."""
        return LiveStatus.from_json(self._ask("GET", "/status"))

    def stop(self, *, reason: str = "forge stop") -> None:
        """Stop as at a first Ctrl-C: the running step ends, and everything is saved."""
        self._ask("POST", "/stop", {"reason": reason})

    def save(self) -> str:
        """Request a checkpoint at the end of the running step. Returns a line that says what will
        happen; raises ConfigError, in one line, outside a training stage."""
        return self._ask("POST", "/save", {})["message"]

    def evaluate(self) -> str:
        """Request an evaluation after the running step, as `eval.every` does. Returns a line that
        says what will happen; raises ConfigError, in one line, outside a grpo stage."""
        return self._ask("POST", "/evaluate", {})["message"]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = send_blocking(
                self._path, method, path, body,
                server=f"the supervisor at {self._path}", timeout_s=self._timeout_s,
            )  # fmt: skip
        except ChildDied as error:
            raise ConfigError(
                f"{self._path}: no supervisor answers there; it has ended or has just begun"
            ) from error
        if answer.status == 200:
            return dict(answer.json())
        where = "" if answer.status == REFUSED else f"{self._path}: {method} {path}: "
        raise ConfigError(f"{where}{error_message(answer.content)}")
