"""`.venv/setup.json`: written at the end of setup, so that the next setup has nothing to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forge.install.installed import find_python

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
