"""`[store]` and `[limits]`: what is kept of a run, and when it must end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Table


class StoreTable(Table):
    """`[store]`: what is kept, and where."""

    dir: PathValue = Path("runs")
    """Parent of run directories, relative to the working directory."""
    texts: Literal["plain", "zstd"] = "zstd"
    """How texts are stored; plain lets stock sqlite3 read them."""
    keep_tokens: Annotated[
        str,
        Field(
            pattern=r"^(all|untrained|last:[1-9]\d*)$",
            json_schema_extra={"allowed": '"all", "untrained" or "last:N"'},
        ),
    ] = "all"
    """Token ids and logprobs in tokens.db: all, untrained, or last:N steps."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 500_000_000
    """A run stops cleanly when the disk has less."""


class LimitsTable(Table):
    """`[limits]`: when an attempt stops, as by a first Ctrl-C. `forge resume` has them afresh."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Wall-clock hours of an attempt."""
    tokens: Positive | None = None
    """Generated tokens of an attempt."""
