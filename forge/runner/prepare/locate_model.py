"""Find a model by directory or hub name before the run directory is made. A model that is offline,
gated or missing gives a one-line error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.runner.prepare.hub import fetch_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.config.schema import ModelTable

NEEDED = ("config.json", "tokenizer.json")
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""Files of a hub repository that are downloaded."""


def locate_model(table: ModelTable, *, say: Callable[[str], None] | None = None) -> ModelTable:
    """The table with `path` set to a local directory and `revision` to the commit in it.

    A model on the hub is downloaded, resumably, after checking the free disk space. If the cache
    has all of it, no network is needed. Blocks; `say` gets a message and a bar shows the download.

    Raises:
        ConfigError: no such model or revision, no access to a gated model, or files are missing.
        MachineError: the network or the disk failed.
    """
    if table.path is None:
        return table
    local = Path(table.path).expanduser()
    if local.is_dir():
        return table.model_copy(update={"path": str(_check_complete(local.resolve()))})
    snapshot = _check_complete(
        fetch_snapshot(
            table.path,
            key="model.path",
            kind="model",
            patterns=PATTERNS,
            revision=table.revision,
            say=say,
        )
    )
    return table.model_copy(update={"path": str(snapshot), "revision": snapshot.name})


def _check_complete(path: Path) -> Path:
    missing = [name for name in NEEDED if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(
            f"model.path: {path}: lacks {', '.join(missing)}; a model directory has them"
        )
    return path
