"""Reads a source from a file or stdin. Called by `forge chat` and `forge judge`."""

from __future__ import annotations

import sys
from contextlib import nullcontext

from forge.errors import ConfigError

STDIN = "-"
MAX_BYTES = 16 << 20
"""Maximum size of a source. The judge itself refuses far smaller ones, as a verdict."""


def read_source(path: str) -> str:
    """The text of a file, or of stdin for `-`. Raises ConfigError if it cannot be read or is not
    UTF-8.
    """
    name = "stdin" if path == STDIN else path
    if path == STDIN and sys.stdin is None:
        raise ConfigError("stdin: it is closed; pipe a source into it, or name a file")
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES >> 20} MiB; a Python source is smaller")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at {error.start} is not UTF-8"
        raise ConfigError(f"{name}: {found}; Python source, or an answer with a block of it") from (
            error
        )
