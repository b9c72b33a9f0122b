# pyright: strict
"""Compiled kernels on their way between the caches of one run's judges.

    POST /kernels {since, entries} → {next, entries}

The supervisor asks each judge on a node for what it compiled `since` the last time, and brings what
others compiled (`forge.runner.live.kernels`). An entry is base64 of a file of the cache.
"""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.compiler.binary import InvalidBinary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.compiler.cache import Cache

logger = logging.getLogger(__name__)

MAX_BYTES = 4 << 20
"""Bytes of entries in one answer; the next request gets the others."""


def exchange(cache: Cache, *, since: int, entries: Sequence[str]) -> dict[str, Any]:
    """Keeps the entries of a request, and answers with those made since."""
    for entry in entries:
        try:
            cache.receive(base64.b64decode(entry, validate=True))
        except (ValueError, InvalidBinary) as error:
            logger.error("a compiled kernel of another judge is not kept: %s", error)
    number, keys = cache.made_since(since)
    found: list[str] = []
    num_bytes = 0
    for position, key in enumerate(keys):
        if num_bytes > MAX_BYTES:
            number -= len(keys) - position
            break
        if (data := cache.give(key)) is not None:
            found.append(base64.b64encode(data).decode())
            num_bytes += len(found[-1])
    return {"next": number, "entries": found}
