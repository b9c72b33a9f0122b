"""Output to a terminal or pipe whose reader may go away. Called by commands and the console."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from typing import TextIO


def redirect_to_null(stream: TextIO) -> None:
    """Drops everything written to the stream from now on, Python's own flush at exit included."""
    with suppress(io.UnsupportedOperation):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
