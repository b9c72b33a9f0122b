"""control.sock, the socket of a running supervisor: its client and its records. The server is
`runner.control`; the trainer's records are in `train`. Every call blocks, and has a deadline.

GET  /status           -> {"ok": true, "run": ..., "stage": ..., ...}   the runner's progress
POST /stop {"reason"}  -> {}                                            as a first Ctrl-C
POST /save             -> {"message": ...}    a checkpoint at the end of the step, or 400
POST /evaluate         -> {"message": ...}    an evaluation after the step, or 400
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forge.errors import ChildDied, ConfigError
from forge.process.ask import error_message, send_blocking

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
        return LiveStatus.from_json(self._ask("GET", "/status"))

    def stop(self, *, reason: str = "forge stop") -> None:
        """Stop as at a first Ctrl-C: the running step ends, and everything is saved."""
        self._ask("POST", "/stop", {"reason": reason})

    def save(self) -> str:
        """Request a checkpoint at the end of the running step. Returns a line that says what will
        happen; raises ConfigError outside a training stage."""
        return self._ask("POST", "/save", {})["message"]

    def evaluate(self) -> str:
        """Request an evaluation after the running step, as `eval.every` does. As `save`; raises
        ConfigError outside a grpo stage."""
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
        except PermissionError as error:  # it names no file
            raise ConfigError(
                f"{self._path}: {error.strerror}: the run is another user's, who alone may ask it"
            ) from error
        if answer.status == 200:
            return dict(answer.json())
        where = "" if answer.status == REFUSED else f"{self._path}: {method} {path}: "
        raise ConfigError(f"{where}{error_message(answer.content)}")


Role = Literal["supervisor", "trainer", "serve", "judge"]
Health = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One process of a run as seen by the supervisor, at most two seconds old."""

    name: str
    """`supervisor`, `trainer`, `serve-0`, `judge-1`."""
    role: Role
    device: str
    """`cpu`, or its GPUs: `GPU 0`, `GPU 2,3`; the address of a remote process."""
    phase: str
    """Current activity: `starting`, `training`, `waiting for a batch`, `asleep`, `gone`, ..."""
    health: Health
    """yellow: a queue at its bound, memory over 90 %, just restarted. red: failed, recovering, or
    silent for longer than its stall limit."""
    why: str
    """Reason for `health`: `queue 256 of 256`, `restarted 20 s ago`. Empty for green."""
    memory_bytes: int | None
    """Resident memory with its children; None if it has ended or is remote."""
    gpu_memory_bytes: int | None
    """Memory that it holds on its GPUs; None without a GPU or without a report of the driver."""
    gpu_use: float | None
    """Utilisation of its GPUs by all processes, 0 to 1; None as above."""
    progress_age_s: float | None
    """Seconds since its last answer or result; None before the first."""
    num_restarts: int
    last_words: str
    """The last line of its log, printable."""
    node: str = ""
    """Name and address of its machine, if that is a node of the cluster."""
    num_judged: int | None = None
    """Verdicts of a judge so far; None for other processes."""
    cpu_cores: float | None = None
    """Cores that it and its children used since the last sample; None before the second."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComponentStatus:
        """Inverse of `asdict`. Ignores unknown fields, which a newer runner may send."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    run: str
    stage: str
    """Current stage: `prepare: pairs`, `sft-1`, ..."""
    done: int
    total: int
    unit: str
    eta_s: float | None
    """Seconds to the end of the stage."""
    tokens_per_s: float
    judged_per_s: float
    """Without cached verdicts, whose turns `RunState.turns_per_s` counts."""
    idle: Mapping[str, float] = field(default_factory=dict[str, float])
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    components: Sequence[ComponentStatus] = ()
    """The supervisor first, then by role and name."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LiveStatus:
        """Its JSON as a record. Ignores unknown fields, which a newer runner may send."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        components = [ComponentStatus.from_json(each) for each in known.pop("components", ())]
        return cls(**known, components=components)
