"""Which engines there are: the module that runs as a child, and whether this machine can run it.

Called by `replicas`, `forge plan` and `forge doctor`. Adding an engine is one entry here and a
module that serves the same endpoints (see `forge.serve.app`).
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.errors import MachineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

if TYPE_CHECKING:
    from forge.config.schema import ServeTable

IMPORT_TIMEOUT_S = 60.0
"""For another interpreter to say whether it has the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """An engine that `serve.engine` may name."""

    module: str
    """Run as `python -m`."""
    requires: tuple[str, ...]
    """Modules that its interpreter must have."""
    advice: str
    """What installs them."""
    start_timeout_s: float
    """Until /health answers, where the experiment says nothing."""


ENGINES: dict[str, EngineKind] = {
    "llama": EngineKind(
        module="forge.serve.llama.app",
        requires=("llama_cpp", "gguf"),
        advice="`make setup` builds it; that needs a C++ compiler (apt install g++)",
        start_timeout_s=120.0,
    ),
}


def engine_argv(table: ServeTable) -> tuple[str, ...]:
    """The command of an engine's child, its config's path to be added."""
    return (str(table.python or sys.executable), "-m", kind_of(table).module)


def start_timeout_s(table: ServeTable) -> float:
    """Until /health must answer."""
    return table.start_timeout_s or kind_of(table).start_timeout_s


def kind_of(table: ServeTable) -> EngineKind:
    """The engine that a table names."""
    return ENGINES["llama" if table.engine == "auto" else table.engine]


def check_engine(table: ServeTable | None = None) -> None:
    """Raise MachineError, in one line, where the engine cannot run here. Loads nothing into this
    process.
    """
    if table is None:
        from forge.config.schema import ServeTable

        table = ServeTable()
    kind = kind_of(table)
    lacks = _lacks if table.python is None else _lacks_elsewhere(table.python)
    if missing := [name for name in kind.requires if lacks(name)]:
        where = f" in {table.python}" if table.python else ""
        raise MachineError(
            f"serve.engine = {table.engine!r}: {missing[0]} is not installed{where}; {kind.advice}"
        )


def _lacks(name: str) -> bool:
    return importlib.util.find_spec(name) is None


def _lacks_elsewhere(python: Path) -> Callable[[str], bool]:
    """The same question for another interpreter."""

    def lacks(name: str) -> bool:
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"
        try:
            done = subprocess.run([python, "-c", code], timeout=IMPORT_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"serve.python = {str(python)!r} does not run: {error}") from error
        return done.returncode != 0

    return lacks
