# pyright: strict
"""An engine on another machine, as a replica sees it. `forge.cluster.engines` provides it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forge.process.child import ChildSpec

if TYPE_CHECKING:
    from forge.errors import ChildDied
    from forge.serve.client import ReplicaClient


class EngineElsewhere(Protocol):
    """A started engine on another machine, with the methods of `Child` that a replica needs."""

    @property
    def client(self) -> ReplicaClient:
        """Its client, closed with the engine."""
        ...

    @property
    def is_alive(self) -> bool:
        """True until its end is known."""
        ...

    async def wait(self) -> str:
        """Wait for its end and return the reason."""
        ...

    async def kill(self) -> None:
        """End it."""
        ...

    def dump_stacks(self) -> None:
        """Make it write its stacks to its log."""
        ...

    def died(self, *, doing: str = "") -> ChildDied:
        """The error for an engine that ended unasked."""
        ...

    async def bring(self, path: Path) -> Path:
        """Copy a directory of weights to its machine; returns the path there. Raises ChildDied,
        MachineError."""
        ...


OpenEngineElsewhere = Callable[[ChildSpec], AbstractAsyncContextManager[EngineElsewhere]]
"""Starts the engine of a spec on another machine. Raises NoRoom while none has room."""
