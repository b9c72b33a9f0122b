"""Uploads an exported model to the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge.errors import MachineError

if TYPE_CHECKING:
    from pathlib import Path


def check_hub(name: str) -> None:
    """Raise MachineError if the hub cannot be reached or nobody is logged in. Call it before the
    work that an upload would lose."""
    from huggingface_hub import HfApi

    api: Any = HfApi()
    try:
        api.whoami()
    except Exception as error:  # network, proxy and token errors share no base class
        raise _refused(name, error) from error


def push(folder: Path, name: str) -> str:
    """Upload a directory to a private repository, which is made if needed. Returns its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        made = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder)
    except Exception as error:
        raise _refused(name, error, saved=f"; the model is in {folder}") from error
    return str(made)


def _refused(name: str, error: Exception, *, saved: str = "") -> MachineError:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
    return MachineError(f"--push {name}: the hub cannot be used: {line}{saved}")
