"""Asks transformers for the shape of a model that is not loaded, once for each config.

The child (`forge.train.trainer.model.measure`) imports torch and takes some seconds; its answer is
kept in `$XDG_CACHE_HOME/forge/shapes/`, by config and version of transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from forge.process.environment import child_env
from forge.store.layout import write_file

CHILD = "forge.train.trainer.model.measure"
FORMAT = 1
"""Raised when the child's answer changes."""
SHAPE = {"params", "linear", "experts", "kv"}
"""Keys of a shape; a kept file without them is damaged, and made again."""
TIMEOUT_S = 60.0
"""For a child that takes 4 s on two cores, for 671 B parameters too."""


def measure(config: dict[str, Any]) -> dict[str, Any]:
    """The child's answer: a shape, or `refused` or `unknown` with the reason."""
    return _measure(json.dumps(config, sort_keys=True))


@cache
def _measure(config: str) -> dict[str, Any]:
    try:
        name = f"{config} {version('transformers')} {version('torch')} {FORMAT}"
    except PackageNotFoundError as error:
        return {"unknown": f"{error.name} is not installed"}
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forge" / "shapes"
    kept = home / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError):
        shape = json.loads(kept.read_text())
        if set(shape) >= SHAPE:
            return shape
    found = _ask(config)
    if "params" in found:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            write_file(kept, json.dumps(found))
    return found


def _ask(config: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", CHILD], env=child_env(threads=1), input=config,
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"unknown": f"transformers needs more than {TIMEOUT_S:.0f} s to make it"}
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {"unknown": f"transformers does not make it: {said[:300]}"}
    return json.loads(done.stdout)
