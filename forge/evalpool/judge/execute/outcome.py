# pyright: strict
"""Results of one section of a program: costs of its launches, memory errors, failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCost:
    """Work of one launch."""

    kernel: str
    grid: tuple[int, int, int]
    line: int
    """Line of the candidate's source; 0 where unknown."""
    bytes_loaded: int
    bytes_stored: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """A memory error that changes an output, in words."""

    kind: str
    """A `FaultKind`, or `unwritten` for an output with elements that nothing wrote."""
    message: str
    line: int
    kernel: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One run of a section."""

    launches: list[LaunchCost] = field(default_factory=list[LaunchCost])
    faults: list[FaultReport] = field(default_factory=list[FaultReport])

    def body(self) -> dict[str, Any]:
        """As JSON of a frame."""
        return {
            "num_launches": len(self.launches),
            "launches": [
                {
                    "kernel": one.kernel,
                    "grid": list(one.grid),
                    "line": one.line,
                    "bytes_loaded": one.bytes_loaded,
                    "bytes_stored": one.bytes_stored,
                    "flops": one.flops,
                }
                for one in self.launches
            ],
            "kernels": sorted({one.kernel for one in self.launches}),
            "faults": [
                {
                    "kind": one.kind,
                    "message": one.message,
                    "line": one.line,
                    "kernel": one.kernel,
                }
                for one in self.faults
            ],
        }


class ExecutionFailed(Exception):
    """A program cannot be run to its end."""

    def __init__(self, kind: str, message: str, *, line: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        """`unsupported`, `misfit`, `operation`, `value`, or a `FaultKind`."""
        self.message = message
        self.line = line
