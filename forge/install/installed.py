"""State of an environment: its Python, installed versions, distributions that are incomplete."""

from __future__ import annotations

import csv
from importlib.metadata import distributions
from pathlib import Path


def find_version(site: Path, name: str) -> str | None:
    """Version of an installed distribution, or None."""
    return next((d.version for d in distributions(name=name, path=[str(site)])), None)


def find_python(venv: Path) -> str | None:
    """Name of the interpreter of an environment, `python3.11`, or None."""
    return next((path.name for path in sorted(venv.glob("lib/python3*"))), None)


def find_damaged(site: Path) -> list[Path]:
    """dist-info directories without a RECORD, or whose RECORD lists an absent or truncated file."""
    return [info for info in sorted(site.glob("*.dist-info")) if not _is_complete(info)]


def _is_complete(info: Path) -> bool:
    try:
        rows = list(csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines()))
        return all(
            (info.parent / row[0]).stat().st_size == int(row[2])
            for row in rows
            if len(row) == 3 and row[2] and not row[0].endswith(".pyc")
        )
    except (OSError, ValueError):
        return False
