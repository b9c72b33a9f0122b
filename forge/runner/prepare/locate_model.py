"""Find a model by directory or hub name before the run directory is made. A model that is offline,
gated or missing gives a one-line error."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import ConfigError, ForgeError, MachineError
from forge.process.machine import free_bytes, is_disk_full
from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from forge.config.schema import ModelTable

NEEDED = ("config.json", "tokenizer.json")
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""Files of a hub repository that are downloaded."""
FREE_FACTOR = 1.1
"""Required disk space relative to the bytes still to be downloaded."""


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
    snapshot = _check_complete(_fetch(table.path, table.revision, say=say))
    return table.model_copy(update={"path": str(snapshot), "revision": snapshot.name})


def _fetch(name: str, revision: str | None, *, say: Callable[[str], None] | None) -> Path:
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"model.path: {name}"
    try:
        needed = _ask_disk(name, revision)
        if needed and say:
            say(f"{name}: {gigabytes(needed, places=2)} to fetch from the hub")
        with _bars(shown=say is not None):
            return Path(snapshot_download(name, revision=revision, allow_patterns=PATTERNS))
    except ForgeError:
        raise
    except GatedRepoError as error:
        raise ConfigError(
            f"{where}: gated; accept its terms on the hub and run `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ConfigError(f"{where}: neither a directory here nor a model on the hub") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"model.revision: {revision}: {name} has no such revision") from error
    except LocalEntryNotFoundError as error:
        raise MachineError(
            f"{where}: not whole in the local cache, and the hub cannot be reached; "
            "fetch it on a machine with a network, or give a directory"
        ) from error
    except Exception as error:  # three HTTP libraries and a Rust one, without a common base
        if is_disk_full(error):
            raise MachineError(f"{where}: the disk is full; HF_HOME names another one") from error
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise MachineError(f"{where}: cannot be fetched: {reason}") from error


def _ask_disk(name: str, revision: str | None) -> int:
    """Bytes still to be downloaded; 0 if the hub does not say, and the real download will fail with
    the reason. Raises MachineError if they do not fit on the disk."""
    from huggingface_hub import (
        constants,
        snapshot_download,  # pyright: ignore[reportUnknownVariableType]
    )
    from huggingface_hub.errors import DryRunError

    try:
        with _bars(shown=False):
            planned = snapshot_download(
                name, revision=revision, allow_patterns=PATTERNS, dry_run=True
            )
    except DryRunError:
        return 0
    needed = sum(file.file_size or 0 for file in planned if file.will_download)
    cache = Path(constants.HF_HUB_CACHE)
    free = free_bytes(cache)
    if needed * FREE_FACTOR > free:
        raise MachineError(
            f"model.path: {name}: {gigabytes(needed)} to fetch, {gigabytes(free)} free in "
            f"{cache}; set HF_HOME to a larger disk"
        )
    return needed


@contextmanager
def _bars(*, shown: bool) -> Generator[None]:
    """Shows or hides the hub library's progress bars, which is a setting of the whole process."""
    from huggingface_hub import utils

    if shown or utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def _check_complete(path: Path) -> Path:
    missing = [name for name in NEEDED if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(
            f"model.path: {path}: lacks {', '.join(missing)}; a model directory has them"
        )
    return path
