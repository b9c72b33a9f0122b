"""Base of all tables, value types that several tables use, and the path of a key.

Validation is strict: `true` is not an integer and `"8"` is not a number. Unknown keys are refused.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

KeyPath = tuple[str | int, ...]
"""Path of a key: `("stage", 1, "steps")` is `steps` of the second `[[stage]]`."""

TomlValue: TypeAlias = (
    "str | int | float | bool | datetime | date | time | list[TomlValue] | TomlTable"
)
TomlTable: TypeAlias = dict[str, TomlValue]

BARE_PART = re.compile(r"[\w-]+")


class Table(BaseModel):
    """Base of every table."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        defer_build=True,  # tables are built once, as parts of Experiment
    )


PathValue = Annotated[Path, Field(strict=False)]
Positive = Annotated[int, Field(ge=1)]
NumProcesses = Annotated[int, Field(ge=1, le=1024)]
"""Number of judges or engines; a plan has a line for each."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]

NAME_RULE = Field(
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    json_schema_extra={"allowed": "1 to 64 letters, digits, . _ -, starting with letter or digit"},
)
"""Names that are part of a path."""


def dotted(path: KeyPath) -> str:
    """A key as it is written in `--set`: `stage.1.steps`, `serve.env."A B"`. Always one line."""
    return ".".join(
        str(part) if BARE_PART.fullmatch(str(part)) else json.dumps(part) for part in path
    )
