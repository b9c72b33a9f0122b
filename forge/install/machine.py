"""Checks that the machine has what setup needs; one line for each missing thing."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

GIB = 1 << 30
VENV_BYTES = {"cpu": 5 * GIB, "cuda": 14 * GIB, "rocm": 22 * GIB}
"""Room for the environment and pip's cache. CPU: 2.9 GiB measured; the others are estimates."""
REPAIR_BYTES = GIB
"""Room for updating an existing environment."""
BUILD_BYTES = GIB
"""Room in the temporary directory for llama.cpp's sources and objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMachine:
    """State of what setup needs; a path is None if nothing was found."""

    python: tuple[int, int]
    make: str | None
    cc: str | None
    cxx: str | None
    headers: Path
    has_headers: bool
    has_venv: bool
    free_bytes: int
    free_build_bytes: int


def read_machine(root: Path, env: Mapping[str, str]) -> HostMachine:
    """Inspects the machine without changing anything."""
    path = env.get("PATH", os.defpath)
    headers = Path(sysconfig.get_paths()["include"])
    return HostMachine(
        python=sys.version_info[:2],
        make=shutil.which("make", path=path),
        cc=_find_compiler(env.get("CC", ""), ("cc", "gcc", "clang"), path=path),
        cxx=_find_compiler(env.get("CXX", ""), ("c++", "g++", "clang++"), path=path),
        headers=headers,
        has_headers=(headers / "Python.h").is_file(),
        has_venv=find_spec("venv") is not None and find_spec("ensurepip") is not None,
        free_bytes=shutil.disk_usage(str(root)).free,
        free_build_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
    )


def _find_compiler(named: str, usual: Sequence[str], *, path: str) -> str | None:
    """The compiler that `CC` or `CXX` names, with any flags removed, else a usual one."""
    names = shlex.split(named)[:1] or usual
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def find_faults(machine: HostMachine, *, need_bytes: int) -> list[str]:
    """One line per fault: what is missing, its purpose, and how to install it on Debian, Ubuntu."""
    return [*_find_missing_tools(machine), *_find_full_disks(machine, need_bytes=need_bytes)]


def _find_missing_tools(machine: HostMachine) -> list[str]:
    python = "python{}.{}".format(*machine.python)
    found = {
        "no make on PATH; Debian, Ubuntu: apt install make": machine.make,
        f"{python} has no venv module with pip; Debian, Ubuntu: apt install {python}-venv": (
            machine.has_venv
        ),
        f"no {machine.headers / 'Python.h'}, triton compiles its launchers against it;"
        f" Debian, Ubuntu: apt install {python}-dev": machine.has_headers,
        "no C compiler on PATH, triton and llama.cpp need one; Debian, Ubuntu: apt install gcc": (
            machine.cc
        ),
        "no C++ compiler on PATH, llama.cpp is compiled here; Debian, Ubuntu: apt install g++": (
            machine.cxx
        ),
    }
    return [fault for fault, is_there in found.items() if not is_there]


def _find_full_disks(machine: HostMachine, *, need_bytes: int) -> list[str]:
    faults: list[str] = []
    if machine.free_bytes < need_bytes:
        faults.append(
            f"disk: {_gib(machine.free_bytes)} free beside the checkout, setup needs"
            f" {_gib(need_bytes)}; free some, or move the checkout"
        )
    if machine.free_build_bytes < BUILD_BYTES:
        faults.append(
            f"disk: {_gib(machine.free_build_bytes)} free in {tempfile.gettempdir()}, compiling"
            f" llama.cpp needs {_gib(BUILD_BYTES)}; TMPDIR=... moves it"
        )
    return faults


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
