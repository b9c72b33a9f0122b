"""`[store]` and `[limits]`: storage of a run, and limits of an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Table


class StoreTable(Table):
    """`[store]`: location and content of a run's storage."""

    dir: PathValue = Path("runs")
    """Parent of run directories, relative to the working directory."""
    texts: Literal["plain", "zstd"] = "zstd"
    """Storage of texts: compressed, or plain, which stock sqlite3 can read."""
    keep_tokens: Annotated[
        str,
        Field(
            pattern=r"^(all|untrained|last:[1-9]\d*)$",
            json_schema_extra={"allowed": '"all", "untrained" or "last:N"'},
        ),
    ] = "all"
    """Token ids and logprobs kept in tokens.db. all: every turn up to 20 GB, then as untrained.
    untrained: only what a resume needs. last:N: the last N steps."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 500_000_000
    """Free disk space below which a run saves and stops."""


class LimitsTable(Table):
    """`[limits]`: an attempt that reaches one saves and stops; each resume is a new attempt."""

    hours: Annotated[float, Field(gt=0)] | None = None
    """Maximum wall-clock time of an attempt."""
    tokens: Positive | None = None
    """Maximum number of generated tokens in an attempt."""
