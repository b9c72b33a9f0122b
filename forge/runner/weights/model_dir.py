"""Directory of a model on this machine: where it is, checks of its files and of its config."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.config.schema import ModelTable
from forge.data.template import read_object
from forge.errors import ConfigError
from forge.train.gguf import made_dir, made_models

CONFIG = "config.json"
NEEDED = (CONFIG, "tokenizer.json")
MAX_CONFIG_MIB = 8
SIZES = frozenset({
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "moe_intermediate_size", "num_experts", "num_local_experts",
    "n_routed_experts", "vocab_size", "max_position_embeddings",
})  # fmt: skip
MAX_SIZE, MAX_LAYERS = 1 << 31, 1 << 10


def config_dir(model: ModelTable) -> Path | None:
    """Folder with the `config.json` of a model: its directory, or the hub's cache. None for a
    random model, or without one on this machine."""
    if model.init or not model.path:
        return None
    if model.is_gguf:
        folders = (made_dir(model.revision or ""),)
    else:
        folders = (Path(model.path).expanduser(), *_cached(model.path))
    return next((each for each in folders if (each / CONFIG).is_file()), None)


def lora_rank(model: ModelTable, *, adapter: Path | None = None) -> int:
    """Largest rank of the adapters to serve: the one to train, `model.adapter` and `adapter`; 0 for
    none, and for one whose config does not say."""
    found = [model.lora.r if model.lora else 0]
    for folder in (model.adapter, adapter):
        if folder is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.append(int(json.loads((folder / "adapter_config.json").read_text())["r"]))
    return max(found)


def _cached(name: str) -> list[Path]:
    """Snapshots of a hub name on this machine, newest first. Read without the hub's library, which
    takes 0.3 s to import; the cache's layout is documented and stable."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    if not name or not folder.is_dir():
        return []
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)


def check_model_path(model: ModelTable, *, is_here: bool = True) -> None:
    """Check a local directory, of which `config.json` suffices for a run elsewhere. A hub name is
    checked when it is downloaded, a GGUF file by its reader. Raises ConfigError with the files that
    it lacks, or the key of its config."""
    path = Path(model.path or "").expanduser()
    if model.path and path.is_dir():
        check_complete(path.resolve(), is_here=is_here)
    elif path.parent == made_models() and not path.exists():
        run = path.name.rsplit("-", 2)[0]
        raise ConfigError(
            f"model.path: {path}: not there; it was the model of run {run} with its adapter "
            f"merged, and the cache was cleared: forge export model {run} --merge --out {path} "
            f"writes it again ({run}:STEP if that run has trained since)"
        )


def check_complete(path: Path, *, is_here: bool = True) -> Path:
    """The directory of a model, if its files are there and its config can be used. Raises
    ConfigError."""
    missing = [name for name in (NEEDED if is_here else NEEDED[:1]) if not (path / name).is_file()]
    if is_here and not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        files = sorted(path.glob("*.gguf"))
        allowed = f'or model.path = "{files[0]}"' if files else "a model directory has them"
        if CONFIG not in missing:
            allowed += "; forge plan --assume MACHINE needs config.json alone"
        raise ConfigError(f"model.path: {path}: lacks {', '.join(missing)}; {allowed}")
    read_config(path)
    return path


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model. Raises ConfigError for what no model has: not an object, no
    `model_type`, or a size that is not a positive integer."""
    path = folder / CONFIG
    if (size := path.stat().st_size >> 20) > MAX_CONFIG_MIB:
        raise ConfigError(f"{path}: {size} MiB; a model's config has up to {MAX_CONFIG_MIB} MiB")
    config = read_object(path)
    kind = config.get("model_type")
    if not isinstance(kind, str) or not re.fullmatch(r"[\w.-]{1,100}", kind):
        raise ConfigError(f"{path}: model_type: found {kind!r:.40}; a name")
    for key in ("text_config", "quantization_config"):
        if type(config.get(key) or {}) is not dict:
            raise ConfigError(f"{path}: {key}: found {config[key]!r:.40}; an object")
    inner: dict[str, Any] = config.get("text_config") or {}
    for table, place in ((config, ""), (inner, "text_config.")):
        for key, found in table.items():
            if key not in SIZES or found is None or isinstance(found, list):
                continue  # a list has one for each layer
            least = int("expert" not in key and not key.startswith("moe_"))
            most = MAX_LAYERS if key == "num_hidden_layers" else MAX_SIZE
            if type(found) is not int or not least <= found <= most:
                text = f"found {found!r:.40}; an integer from {least} to {most} is allowed"
                raise ConfigError(f"{path}: {place}{key}: {text}")
    return config
