# pyright: strict
"""An engine on another machine: as a replica sees it, and its child there. `forge.cluster.roles`
provides the first and starts the second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from forge.config.schema import ServeTable, with_half_a_card
from forge.process.child import ChildSpec
from forge.serve.engines import check_engine, resolve
from forge.serve.replicas import engine_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.errors import ChildDied
    from forge.serve.client import ReplicaClient

COMMON = ("stop_token_ids", "max_lora_rank", "version")
"""Keys of an engine's config that are the same at home and elsewhere."""


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


def settings_elsewhere(spec: ChildSpec, table: ServeTable) -> dict[str, Any]:
    """The part of a replica's spec that its engine elsewhere needs, as JSON."""
    return {
        "table": table.model_dump(mode="json"),
        "common": {key: spec.config[key] for key in COMMON},
    }


def spec_elsewhere(
    settings: Mapping[str, Any], *, index: int, model_dir: str, folder: Path, work: Path,
    gpus: Sequence[str], shares_gpu: bool,
) -> ChildSpec:  # fmt: skip
    """The engine of a replica on this machine, with its own installation and cards.

    Raises MachineError if the engine is not installed here.

    Args:
        settings: from `settings_elsewhere`.
        folder: for its socket and its log. `work` is for its own files.
        shares_gpu: its card may have another child of the run.
    """
    table = resolve(ServeTable.model_validate(settings["table"]), gpus=gpus)
    check_engine(table, gpus=gpus)
    own: dict[str, Any] = {
        "work_dir": str(work), "model_dir": model_dir, "shared_gpus": gpus if shares_gpu else [],
    }  # fmt: skip
    if shares_gpu:
        table = with_half_a_card(table)
    return engine_spec(
        table, index=index, socket_dir=folder, log_dir=folder, gpus=gpus,
        config={**own, **settings["common"]},
    )  # fmt: skip
