# pyright: strict
"""Results of one section of a program: costs of its launches, memory errors, failures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.memory.storages import FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Work of one launch or torch operation."""

    name: str
    """The kernel, or the operation."""
    line: int
    """Line of the candidate's source; 0 where unknown."""
    tensor_bytes: int
    """Bytes of its tensors: of a launch at most what it loads and stores."""
    requested_bytes: int = 0
    """Bytes that the program instances of a launch load and store."""
    flops: dict[str, float] = field(default_factory=dict[str, float])
    """By the unit that does them: `fp32`, `tf32` or `half`."""
    contended: int = 0
    """Atomic updates of one place, which a card does one after the other."""
    num_programs: int | None = None
    """Program instances; None for a torch operation."""


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

    costs: list[NodeCost] = field(default_factory=list[NodeCost])
    faults: list[FaultReport] = field(default_factory=list[FaultReport])

    @property
    def num_launches(self) -> int:
        """Launches so far."""
        return sum(one.num_programs is not None for one in self.costs)

    def body(self) -> dict[str, Any]:
        """As JSON of a frame."""
        return {
            "costs": [asdict(one) for one in self.costs],
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
