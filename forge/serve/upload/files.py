# pyright: strict
"""The files of a directory of weights, by content: what is sent to a server, and how it is checked.

Used on both sides of an upload. Promise: a manifest from outside has only plain names of known
types, so that a server writes nothing outside its folder and holds no program.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
SUFFIXES = frozenset({".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken"})
"""Files that engines and tokenizers read. No pickles and no Python."""
DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_FILES = 1000
BLOCK_BYTES = 1 << 20
CLAIM = "X-Forge-Claim"
"""Header with the key of a run's claim."""
CONFLICT = 409
"""Another run publishes, or the claim is unknown."""
DAMAGED = 422
"""The bytes of a file are not those of its digest."""
FULL = 507
"""Insufficient storage: the client's run ends instead of trying again."""
SAME = "install the same version on both"
"""End of the refusal of another version of forge, which no waiting repairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """One file of a directory."""

    name: str
    sha256: str
    num_bytes: int

    def to_json(self) -> dict[str, Any]:
        """As JSON, for `read_manifest`."""
        return {"name": self.name, "sha256": self.sha256, "num_bytes": self.num_bytes}


Manifest = tuple[WeightFile, ...]
"""The files of one directory, in the order of their names."""


class Digests:
    """Digests of files, each read once while it stays the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], str] = {}

    def manifest(self, directory: Path) -> Manifest:
        """The weights in a directory. Reads all of them: call it in a thread. Raises ConfigError
        where there are none."""
        files = tuple(self._describe(path) for path in _weight_paths(directory))
        if not any(file.name.endswith(".safetensors") for file in files):
            raise ConfigError(f"{directory}: no .safetensors files, the only weights that are sent")
        return files

    def _describe(self, path: Path) -> WeightFile:
        status = path.stat()
        key = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
        if key not in self._known:
            self._known[key] = _sha256(path)
        return WeightFile(name=path.name, sha256=self._known[key], num_bytes=status.st_size)


def _weight_paths(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in SUFFIXES and NAME.fullmatch(path.name):
            yield path


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_manifest(found: object) -> Manifest:
    """A manifest from JSON. Raises ConfigError with the entry that is wrong."""
    if not isinstance(found, list) or not 0 < len(cast("list[Any]", found)) <= MAX_FILES:
        raise ConfigError(f"files: found no list; 1 to {MAX_FILES} of {{name, sha256, num_bytes}}")
    files = tuple(map(_read_file, cast("list[Any]", found)))
    if len({file.name for file in files}) != len(files):
        raise ConfigError("files: a name occurs twice")
    return files


def _read_file(found: Any) -> WeightFile:
    try:
        name, digest, size = found["name"], found["sha256"], found["num_bytes"]
    except (TypeError, KeyError) as error:
        raise ConfigError(f"files: {error}; each has name, sha256 and num_bytes") from error
    suffix = f".{str(name).rpartition('.')[2]}"
    if not isinstance(name, str) or not NAME.fullmatch(name) or suffix not in SUFFIXES:
        allowed = ", ".join(sorted(SUFFIXES))
        raise ConfigError(f"files: found {name!r}; a plain name that ends in {allowed}")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ConfigError(f"files: {name}: found {digest!r}; sha256 is 64 hexadecimal digits")
    if type(size) is not int or size < 0:
        raise ConfigError(f"files: {name}: found {size!r}; num_bytes is an integer from 0")
    return WeightFile(name=name, sha256=digest, num_bytes=size)
