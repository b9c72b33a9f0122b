"""What every table of an experiment file is made from: the pydantic base and common values.

Strict: `true` is no integer and `"8"` no number. Unknown keys are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


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
Share = Annotated[float, Field(ge=0.0, le=1.0)]
