# pyright: strict
"""Configs of models that a reference names and the Hugging Face cache of this machine has.

Called by `spawner.py` for children that run references, which reach neither the cache nor a model
hub: `config.json` is copied into their home directory, in the cache's layout. Weights are not
copied; `reference/stand_ins.py` makes random ones.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MAX_CONFIG_BYTES = 256 << 10
MAX_MODELS = 16
"""Maximum number of models of one source."""
CACHE = ".cache/huggingface/hub"
"""Default place of the cache, below a home directory."""
_NAME = re.compile(r"""["']([\w-][\w.-]*(?:/[\w-][\w.-]*)?)["']""")
"""A string that can be the name of a model: `gpt2`, `facebook/opt-1.3b`."""


def home_files(source: str) -> dict[str, str]:
    """Texts of files by path below a home directory: the configs of all models that the source
    names in a string. Empty for a source that does not mention transformers."""
    if "transformers" not in source:
        return {}
    files: dict[str, str] = {}
    names = list(dict.fromkeys(_NAME.findall(source)))
    for folder in [f"models--{name.replace('/', '--')}" for name in names]:
        if (found := _config(cache_dir() / folder)) is not None:
            revision, config = found
            files[f"{CACHE}/{folder}/refs/main"] = revision
            files[f"{CACHE}/{folder}/snapshots/{revision}/config.json"] = config
        if len(files) == 2 * MAX_MODELS:
            break
    return files


def cache_dir() -> Path:
    """The cache of this user, as huggingface_hub finds it."""
    if found := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(found).expanduser()
    if found := os.environ.get("HF_HOME"):
        return Path(found).expanduser() / "hub"
    if found := os.environ.get("XDG_CACHE_HOME"):
        return Path(found).expanduser() / "huggingface" / "hub"
    return Path("~", CACHE).expanduser()


def _config(model: Path) -> tuple[str, str] | None:
    """Revision and text of a model's config; None if the cache does not have it."""
    try:
        revision = (model / "refs" / "main").read_text(encoding="utf-8").strip()
        path = model / "snapshots" / revision / "config.json"
        if not re.fullmatch(r"\w+", revision) or path.stat().st_size > MAX_CONFIG_BYTES:
            return None
        return revision, path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError):
        return None
