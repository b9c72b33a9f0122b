"""Checks of a published directory that every engine makes before it loads anything.

Called by the weight loading of llama, hf and vllm.
"""

# pyright: strict

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

from forge.errors import ConfigError
from forge.serve.checkpoint_files import read_json

ADAPTER_CONFIG = "adapter_config.json"


def holds_adapter(path: Path) -> bool:
    """True for a PEFT adapter, False for a full checkpoint. Raises ConfigError if there is no such
    directory."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory of weights")
    return (path / ADAPTER_CONFIG).exists()


def read_lora_config(path: Path) -> dict[str, Any]:
    """The adapter's config. Raises ConfigError unless it is a LoRA adapter."""
    where = path / ADAPTER_CONFIG
    config = read_json(where)
    if (kind := config.get("peft_type")) != "LORA":
        raise ConfigError(f"{where}: peft_type is {kind!r}; allowed is 'LORA'")
    return config


def check_names(path: Path, *, found: Set[str], needed: Set[str]) -> None:
    """Raise ConfigError unless a directory holds exactly the tensors that are needed."""
    if missing := sorted(needed - found):
        raise ConfigError(f"{path}: {len(missing)} tensors missing, the first is {missing[0]}")
    if extra := sorted(found - needed):
        raise ConfigError(f"{path}: {len(extra)} tensors have no place, the first is {extra[0]}")


def one_line(error: Exception) -> str:
    """The beginning of a library's error message, in one line."""
    return " ".join(str(error).split())[:300]
