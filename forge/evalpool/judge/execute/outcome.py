"""Results of one section of a program: its launches, memory errors, failures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.memory.storages import FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """A memory error that changes an output, in words."""

    kind: str
    """A `FaultKind`, or `unwritten` for an output with elements that nothing wrote."""
    message: str
    line: int
    kernel: str


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A memory error that may not matter."""

    kind: FaultKind
    report: Callable[[], FaultReport]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One run of a section."""

    num_launches: int = 0
    """Launches so far."""
    num_bytes: int = 0
    """Bytes that their program instances load and store."""
    faults: list[FaultReport] = field(default_factory=list[FaultReport])

    def body(self) -> dict[str, Any]:
        """As JSON of a frame."""
        return {"num_bytes": self.num_bytes, "faults": [asdict(one) for one in self.faults]}


class ExecutionFailed(Exception):
    """A program cannot be run to its end."""

    def __init__(self, kind: str, message: str, *, line: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        """`unsupported`, `misfit`, `operation`, `value`, or a `FaultKind`."""
        self.message = message
        self.line = line
