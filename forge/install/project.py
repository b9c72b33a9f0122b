"""Requirements in pyproject.toml and constraints.txt, divided among the steps of setup."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXTRAS = ("judge", "train", "llama", "dev")
"""Extras that setup installs."""
ELSEWHERE = ("forge-kernels", "torch", "llama-cpp-python")
"""Requirements of these extras that are no part of the step: steps of their own, and an extra that
another one includes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Content of pyproject.toml and constraints.txt."""

    tables: dict[str, Any]
    """pyproject.toml, parsed."""
    constraints: str
    """constraints.txt, unchanged."""

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
    """Reads the two files."""
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
