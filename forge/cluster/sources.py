# pyright: strict
"""Digest of forge's own sources, to compare installations on several machines.

A version number does not change with every commit; nodes of a run need equal sources.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import forge

DIGITS = 12
"""Digits of the digest that are compared and shown."""


@cache
def source_digest(root: Path | None = None) -> str:
    """Digest of the paths and contents of the Python files below `root` (default: forge).

    The monitor is left out: no node runs it, and in a checkout it is a link.
    """
    folder = Path(forge.__file__).parent if root is None else root
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if path.is_relative_to(folder / "tui"):
            continue
        found.update(f"{path.relative_to(folder)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:DIGITS]
