"""Runs made of records, for tests of reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from forge.store.layout import RunPaths
from tests.store.storefactory import write_run

if TYPE_CHECKING:
    from pathlib import Path


def make_run(root: Path, records: list, *, texts: str = "plain") -> RunPaths:
    """Writes a run of these records."""
    anyio.run(lambda: write_run(root, records, texts=texts))
    return RunPaths(root)
