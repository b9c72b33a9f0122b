"""`forge doctor`: what this machine has, and what mends what it lacks. Imports nothing heavy."""

from __future__ import annotations

import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from forge.errors import ForgeError
from forge.process.sockets import open_socket_dir
from forge.runner.machine import ENGINE_PACKAGES, this_machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIN_MEMORY_BYTES = 4 << 30
"""The quickstart's need, with room."""
MIN_DISK_BYTES = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    found: str
    is_ok: bool = True
    fix: str = ""


def examine(store_dir: Path) -> list[Finding]:
    """Everything, in the order in which it matters."""
    return [*_software(), *_engines(store_dir), *_hardware(store_dir), _sockets()]


def _software() -> Iterator[Finding]:
    is_linux = sys.platform == "linux"
    yield Finding(
        name="system",
        found=f"{platform.system()} {platform.release()} {platform.machine()}",
        is_ok=is_linux,
        fix="" if is_linux else "runs need Linux; reading commands work here",
    )
    is_new = sys.version_info >= (3, 11)
    fix = "" if is_new else "Python 3.11 or later"
    yield Finding(name="python", found=platform.python_version(), is_ok=is_new, fix=fix)
    for package in ("torch", "triton", "transformers", "trl", "peft"):
        try:
            yield Finding(name=package, found=metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(name=package, found="not installed", is_ok=False, fix='"make setup"')
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    yield Finding(
        name="C compiler",
        found=compiler or "none",
        is_ok=compiler is not None,
        fix="" if compiler else "install gcc; Triton builds its launchers with it on GPUs",
    )


def _engines(store_dir: Path) -> Iterator[Finding]:
    installed = this_machine(store_dir).engines
    for engine in ENGINE_PACKAGES:
        is_ok = engine in installed
        yield Finding(
            name=f"engine {engine}",
            found="installed" if is_ok else "not installed",
            is_ok=is_ok,
            fix="" if is_ok else '"make setup" compiles it; needs a C++ compiler',
        )


def _hardware(store_dir: Path) -> Iterator[Finding]:
    machine = this_machine(store_dir)
    yield Finding(name="cores", found=str(machine.cores))
    yield Finding(
        name="memory",
        found=f"{machine.memory_bytes / 1e9:.1f} GB",
        is_ok=machine.memory_bytes >= MIN_MEMORY_BYTES,
        fix="" if machine.memory_bytes >= MIN_MEMORY_BYTES else "the quickstart needs 4 GB",
    )
    yield Finding(
        name=f"disk for {store_dir}",
        found=f"{machine.free_disk_bytes / 1e9:.1f} GB free",
        is_ok=machine.free_disk_bytes >= MIN_DISK_BYTES,
        fix=""
        if machine.free_disk_bytes >= MIN_DISK_BYTES
        else "free some, or --set store.dir=DIR",
    )
    if not machine.gpus:
        yield Finding(name="GPUs", found="none: everything runs on the CPU")
    for gpu in machine.gpus:
        free = f"{gpu.free_bytes / 1e9:.0f} of {gpu.memory_bytes / 1e9:.0f} GB free"
        yield Finding(name=f"GPU {gpu.index}", found=f"{gpu.name}, {free}, {gpu.uuid}")


def _sockets() -> Finding:
    try:
        with open_socket_dir() as folder:
            return Finding(name="sockets", found=str(folder.parent))
    except (ForgeError, OSError) as error:
        return Finding(name="sockets", found=str(error), is_ok=False, fix="set TMPDIR to /tmp")
