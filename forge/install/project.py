"""The packages that setup is to install, and those that are there.

Requirements of pyproject.toml and constraints.txt, divided among the steps; versions and incomplete
distributions of an environment; and the stamp `.venv/setup.json`, written at the end of setup so
that the next setup has nothing to do.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

EXTRAS = ("judge", "train", "llama", "dev")
ELSEWHERE = ("forge-kernels", "torch", "llama-cpp-python")
"""Requirements of these extras that are no part of the step: steps of their own, and an extra that
another one includes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Content of pyproject.toml and constraints.txt."""

    tables: dict[str, Any]
    constraints: str

    @property
    def requirements(self) -> list[str]:
        """All requirements except torch and llama.cpp, which have their own steps."""
        wanted = list(self.tables["project"]["dependencies"])
        for extra in EXTRAS:
            wanted += self._extra(extra)
        return [line for line in wanted if _name(line) not in ELSEWHERE]

    @property
    def llama(self) -> str:
        """The requirement of llama-cpp-python, with an exact version."""
        return next(line for line in self._extra("llama") if _name(line) == "llama-cpp-python")

    @property
    def torch(self) -> str:
        """The tested version of torch, as a requirement."""
        return next(line for line in self.constraints.splitlines() if _name(line) == "torch")

    def _extra(self, name: str) -> list[str]:
        return self.tables["project"]["optional-dependencies"][name]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found.group()).lower() if found else ""


def load_project(root: Path) -> Project:
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    return Project(tables=tables, constraints=constraints)


def pin_torch(constraints: str, *, torch: str, triton: str | None) -> str:
    """The constraints with the installed torch, and with its triton if torch brought one."""
    replaced = {"torch", "triton"} if _brings_triton(torch, triton) else {"torch"}
    lines = [line for line in constraints.splitlines() if _name(line) not in replaced]
    lines.append(f"torch=={torch}")
    if triton is not None and "triton" in replaced:
        lines.append(f"triton=={triton}")
    return "\n".join(lines) + "\n"


def drop_triton(requirements: Sequence[str], *, torch: str, triton: str | None) -> list[str]:
    """The requirements without PyPI's triton if torch brought its own, which it would overwrite."""
    is_there = _brings_triton(torch, triton) and triton is None
    return [line for line in requirements if not (is_there and _name(line) == "triton")]


def _brings_triton(torch: str, triton: str | None) -> bool:
    """True if the build of torch determines triton: CUDA and ROCm builds do, CPU builds do not."""
    return "+rocm" in torch or (triton is not None and not torch.endswith("+cpu"))


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
