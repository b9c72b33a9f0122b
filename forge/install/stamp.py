"""State of an environment: installed versions, distributions that are incomplete, and the stamp
`.venv/setup.json`, written at the end of setup so that the next setup has nothing to do.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.install.project import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Result of the last complete setup."""

    fingerprint: str
    torch: str
    """Build of torch: cpu, cuda, rocm, or the user's own requirement."""
    root: str
    """Directory of the checkout: the environment's scripts carry absolute paths."""
    llama: str = "cpu"
    """Build of llama.cpp: cpu, cuda, hip or vulkan."""


def fingerprint(project: Project, root: Path, env: Mapping[str, str]) -> str:
    """Hash of everything that determines the packages, except the choices in the stamp."""
    inputs = [
        project.tables["project"],
        project.tables["build-system"],
        project.constraints,
        env.get("CMAKE_ARGS", ""),
        *(
            path.read_text(encoding="utf-8")
            for path in sorted((root / "forge/install").glob("*.py"))
        ),
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def read_stamp(venv: Path) -> Stamp | None:
    """The stamp, or None if setup never completed."""
    try:
        return Stamp(**json.loads((venv / "setup.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def is_done(
    venv: Path,
    *,
    root: Path,
    wanted: str,
    torch: str | None,
    python: str | None,
    llama: str | None = None,
) -> bool:
    """True if the last setup made what is wanted now. None accepts its torch, Python or llama."""
    stamp = read_stamp(venv)
    if stamp is None or stamp.fingerprint != wanted or stamp.root != str(root):
        return False
    are_accepted = (
        torch in (None, stamp.torch)
        and python in (None, find_python(venv))
        and llama in (None, stamp.llama)
    )
    return are_accepted and (venv / "bin" / "forge").exists()


def write_stamp(venv: Path, stamp: Stamp) -> None:
    """Writes the stamp atomically."""
    staged = venv / "setup.json.new"
    staged.write_text(json.dumps(asdict(stamp)), encoding="utf-8")
    staged.replace(venv / "setup.json")


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
