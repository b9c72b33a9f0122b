"""A model by directory or by hub name, found before any child starts: offline, gated or missing
is one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from forge.config.schema import ModelTable

NEEDED = ("config.json", "tokenizer.json")
FREE_FACTOR = 1.1
"""Disk asked for, relative to the bytes still to be fetched."""


def resolve_model(table: ModelTable) -> Path:
    """Local directory of the model. Downloads a hub name with a bar, resumable, after checking the
    disk.

    Raises ConfigError for what the user can mend (no such directory or model, gated, no revision),
    MachineError for the network and the disk.
    """
    assert table.path is not None
    local = Path(table.path).expanduser()
    if local.is_dir():
        return _check_complete(local.resolve())
    if table.path.startswith((".", "/", "~")) or table.path.count("/") > 1:
        raise ConfigError(f"model.path: {table.path}: no such directory")
    return _check_complete(_download(table.path, table.revision))


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        _check_disk(name, revision, patterns)
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError as error:
        raise ConfigError(
            f"model.path: {name}: gated; accept its terms on the hub and run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"model.path: {name}: neither a directory here nor a model on the hub"
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"model.revision: {revision}: {name} has no such revision") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise MachineError(
            f"model.path: {name}: not in the local cache and the hub cannot be reached; "
            "fetch it on a machine with a network, or give a directory"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise MachineError(
            f"model.path: {name}: the hub did not answer: {_first_line(error)}"
        ) from error


def _check_disk(name: str, revision: str | None, patterns: list[str]) -> None:
    from huggingface_hub import constants, snapshot_download

    planned = snapshot_download(name, revision=revision, allow_patterns=patterns, dry_run=True)
    needed = sum(file.file_size or 0 for file in planned if file.will_download)
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if needed * FREE_FACTOR > free:
        raise MachineError(
            f"model.path: {name}: {needed / 1e9:.1f} GB to fetch, {free / 1e9:.1f} GB free in "
            f"{cache}; "
            "set HF_HOME to a larger disk"
        )


def _check_complete(path: Path) -> Path:
    missing = [name for name in NEEDED if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(
            f"model.path: {path}: lacks {', '.join(missing)}; a model directory has them"
        )
    return path


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
