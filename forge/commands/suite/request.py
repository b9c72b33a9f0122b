"""The options of `forge eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequest:
    """A model, a suite, and settings that replace those of the model's run or the defaults."""

    source: str
    """A run, `RUN` or `RUN:STEP`; a directory with a model or an adapter; a hub name; a URL."""
    suite: str | None = None
    """A named suite, a directory, or an experiment file; None for the held-out problems of the
    run."""
    protocol: str | None = None
    baseline: str | None = None
    """eager, compile or both; None as in the judge's settings."""
    samples: int | None = None
    turns: int | None = None
    greedy: bool | None = None
    device: str = "auto"
    seed: int | None = None
    limit: int | None = None
    """Maximum number of problems, at even distances in the suite; None for all."""
    model_name: str | None = None
    """Model of the server; None for the only one there."""
    api_key_env: str | None = None
    overrides: Sequence[str] = ()
    """`--set` of the experiment that is made."""
    store: Path = Path("runs")
