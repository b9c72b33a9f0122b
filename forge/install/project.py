"""What pyproject.toml and constraints.txt ask for, cut into the steps of setup."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What pyproject.toml and constraints.txt say."""

    tables: dict[str, Any]
    """pyproject.toml, parsed."""
    constraints: str
    """constraints.txt, as it is."""

    @property
    def requirements(self) -> list[str]:
        """Everything but torch and llama.cpp, which have steps of their own."""
        wanted = [
            *self.tables["project"]["dependencies"],
            *self._extra("llama"),
            *self._extra("dev"),
        ]
        return [line for line in wanted if _name(line) not in ("torch", "llama-cpp-python")]

    @property
    def llama(self) -> str:
        """The requirement of llama-cpp-python, exact."""
        return next(line for line in self._extra("llama") if _name(line) == "llama-cpp-python")

    @property
    def torch(self) -> str:
        """The tested version, as a requirement."""
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
    """The constraints, but with the installed torch, and triton too where it came with torch."""
    replaced = {"torch", "triton"} if _brings_triton(torch, triton) else {"torch"}
    lines = [line for line in constraints.splitlines() if _name(line) not in replaced]
    lines.append(f"torch=={torch}")
    if triton is not None and "triton" in replaced:
        lines.append(f"triton=={triton}")
    return "\n".join(lines) + "\n"


def drop_triton(requirements: Sequence[str], *, torch: str, triton: str | None) -> list[str]:
    """Without PyPI's triton where torch brought its own: it would overwrite those files."""
    is_there = _brings_triton(torch, triton) and triton is None
    return [line for line in requirements if not (is_there and _name(line) == "triton")]


def _brings_triton(torch: str, triton: str | None) -> bool:
    """CUDA builds require one version of triton, ROCm builds one of their own, CPU builds none."""
    return "+rocm" in torch or (triton is not None and not torch.endswith("+cpu"))
