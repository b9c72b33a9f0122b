# pyright: strict
"""The files of a directory of weights, by content: what is sent to a server, and how it is checked.

Used on both sides of an upload. Promise: a manifest from outside has only plain names of known
types, so that a server writes nothing outside its folder and holds no program.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from forge.errors import ConfigError, MachineError

SUFFIXES = ("safetensors", "json", "jinja", "txt", "model", "tiktoken")
"""Endings of files that engines and tokenizers read. No pickles and no Python."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.(" + "|".join(SUFFIXES) + ")$"
DIGEST = r"^[0-9a-f]{64}$"
MAX_FILES = 1000
ALLOWED = {
    "name": f"a plain name that ends in .{', .'.join(SUFFIXES)}",
    "sha256": "64 hexadecimal digits",
    "num_bytes": "an integer from 0",
}
CLAIM = "X-Forge-Claim"
"""Header with the key of a run's claim."""
CONFLICT = 409
"""Another run publishes, or the claim is unknown."""
DAMAGED = 422
"""The bytes of a file that arrived have another digest."""
FULL = 507
"""Insufficient storage: the client's run ends instead of trying again."""
SAME = "install the same version on both"
"""End of the refusal of another version of forge, which no waiting repairs."""


class DamagedFile(MachineError):
    """A file did not arrive as it was sent."""


class DiskFull(MachineError):
    """The disk of the server has no room for an upload."""


class WeightFile(BaseModel):
    """One file of a directory."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Annotated[str, Field(pattern=NAME)]
    sha256: Annotated[str, Field(pattern=DIGEST)]
    num_bytes: Annotated[int, Field(ge=0)]


Manifest = tuple[WeightFile, ...]
"""The files of one directory, in the order of their names."""
_MANIFEST = TypeAdapter(
    Annotated[list[WeightFile], Field(min_length=1, max_length=MAX_FILES, strict=True)]
)


class Digests:
    """Digests of files, each read once while it stays the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], str] = {}

    def manifest(self, directory: Path) -> Manifest:
        """The weights in a directory. Reads all of them: call it in a thread. Raises ConfigError
        where there are none."""
        paths = sorted(path for path in directory.iterdir() if path.is_file())
        files = tuple(self._describe(path) for path in paths if re.match(NAME, path.name))
        if not any(file.name.endswith(".safetensors") for file in files):
            raise ConfigError(f"{directory}: no .safetensors files, the only weights that are sent")
        return files

    def _describe(self, path: Path) -> WeightFile:
        status = path.stat()
        key = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
        if key not in self._known:
            with path.open("rb", buffering=0) as stream:
                self._known[key] = hashlib.file_digest(stream, "sha256").hexdigest()
        return WeightFile(name=path.name, sha256=self._known[key], num_bytes=status.st_size)


def read_manifest(found: object) -> Manifest:
    """A manifest from JSON. Raises ConfigError with the entry that is wrong."""
    try:
        files = tuple(_MANIFEST.validate_python(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("files", *first["loc"])))
        needed = f"1 to {MAX_FILES} of {{name, sha256, num_bytes}}"
        allowed = ALLOWED.get(str(first["loc"][-1]) if first["loc"] else "", needed)
        raise ConfigError(f"{where}: found {repr(first['input'])[:100]}; {allowed}") from error
    if len({file.name for file in files}) != len(files):
        raise ConfigError("files: a name occurs twice")
    return files
