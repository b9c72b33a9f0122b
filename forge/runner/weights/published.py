"""Directories of published weights: names, digests, and finding and deleting unused ones."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PUBLISHED = re.compile(r"\.?(sft|grpo)-\d+")
"""Start of the names that trainers give to the directories they publish."""


def sha256_of_weights(path: Path) -> str:
    """Digest of all weight files of a directory, in name order; empty where there is none."""
    digest, is_empty = hashlib.sha256(), True
    for file in sorted(path.glob("*.safetensors")):
        is_empty = False
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return "" if is_empty else digest.hexdigest()


def find_strays(weights_dir: Path, *, kept: Iterable[str]) -> list[Path]:
    """Directories, whole or partial, that trainers wrote and that are not in `kept`."""
    names = {PurePath(path).name for path in kept}
    written = [path for path in sorted(weights_dir.iterdir()) if PUBLISHED.match(path.name)]
    return [path for path in written if path.name not in names]


def remove_dirs(paths: Iterable[Path]) -> None:
    """Delete directories; absent ones are ignored."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
