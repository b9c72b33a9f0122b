"""`forge doctor`: checks this machine, and names the fix for each problem. Never imports torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from forge.config.schema import ServeTable
from forge.errors import ForgeError, MachineError
from forge.evalpool.judge.sandbox import advice, read_sysctls
from forge.process.devices import inventory
from forge.process.environment import child_env
from forge.process.sockets import open_socket_dir
from forge.runner.plan.machine import Machine, this_machine
from forge.serve.installed.engines import ENGINES, choose_engine
from forge.serve.installed.versions import (
    PYTHON_AT_LEAST,
    TESTED_VLLM,
    Interpreter,
    find_mismatch,
    is_tested_vllm,
    read_interpreter,
)
from forge.store.filesystem import find_mount
from forge.views.text.numbers import gigabytes

MIN_MEMORY_BYTES = 4 << 30
"""Memory for the quickstart, with a reserve."""
MIN_DISK_BYTES = 2 << 30
LLAMA_FOR_GPUS = "make setup LLAMA=cuda (or hip, vulkan)"
SANDBOX_PROBE = "from forge.evalpool.judge import levels; print(levels.describe())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    name: str
    found: str
    is_ok: bool = True
    fix: str = ""


def examine(store_dir: Path, *, serve: ServeTable | None = None) -> list[Finding]:
    """Runs all checks, the most important first.

    Args:
        store_dir: parent of run directories; its disk is checked.
        serve: `[serve]` of an experiment, to check the engines of its interpreter; absent means
            this interpreter.
    """
    try:
        engines = list(_engines(read_interpreter(serve), inventory(), serve))
        machine = this_machine(store_dir, serve=serve)
    except MachineError as error:
        fix = "serve.python must name a Python that runs"
        engines = [Finding(name="engines", found=str(error), is_ok=False, fix=fix)]
        machine = this_machine(store_dir)
    hardware = _hardware(machine, store_dir)
    return [*_software(), *engines, *hardware, _sandbox(), _sockets()]


def render(findings: list[Finding]) -> Table:
    """One line per finding, with a mark and the fix."""
    table = Table("", "", "found", "fix", box=None, pad_edge=False)
    for finding in findings:
        mark = Text("ok", style="green") if finding.is_ok else Text("no", style="red")
        table.add_row(mark, finding.name, Text(finding.found), Text(finding.fix))
    return table


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """The findings for programs."""
    return {"ok": all(each.is_ok for each in findings), "findings": [asdict(e) for e in findings]}


def _software() -> Iterator[Finding]:
    is_linux = sys.platform == "linux"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield _require(is_linux, "system", system, fix="runs need Linux; reading commands work here")
    is_new = sys.version_info >= PYTHON_AT_LEAST
    fix = "Python {}.{} or later".format(*PYTHON_AT_LEAST)
    yield _require(is_new, "python", platform.python_version(), fix=fix)
    for package in ("torch", "triton", "transformers", "trl", "peft"):
        try:
            yield Finding(name=package, found=metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(name=package, found="not installed", is_ok=False, fix='"make setup"')
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    fix = "install gcc; Triton builds its launchers with it on GPUs"
    yield _require(compiler is not None, "C compiler", compiler or "none", fix=fix)


def _require(is_ok: bool, name: str, found: str, *, fix: str) -> Finding:
    return Finding(name=name, found=found, is_ok=is_ok, fix="" if is_ok else fix)


def _engines(
    python: Interpreter, gpus: Sequence[object], serve: ServeTable | None
) -> Iterator[Finding]:
    """Each engine, and the one that `serve.engine = "auto"` chooses here."""
    if python.python:
        versions = ", ".join(f"{name} {version}" for name, version in python.versions.items())
        yield Finding(name="serve.python", found=f"{python.python}: {versions}")
    installed = frozenset(
        name for name, kind in ENGINES.items() if python.modules.issuperset(kind.requires)
    )
    for name in ENGINES:
        yield _engine(name, python, gpus, is_installed=name in installed)
    chosen, why = choose_engine(serve or ServeTable(), gpus=gpus, installed=installed)
    is_fallback = chosen == "hf" and bool(gpus)
    fix = f'"{LLAMA_FOR_GPUS}", or {ENGINES["vllm"].advice}'
    yield _require(not is_fallback, "engine of runs", f"{chosen}: {why}", fix=fix)


def _engine(
    name: str, python: Interpreter, gpus: Sequence[object], *, is_installed: bool
) -> Finding:
    label, kind = f"engine {name}", ENGINES[name]
    if not is_installed:
        # An engine for GPUs is optional, and is recommended only if there are GPUs.
        is_wanted = not kind.needs_gpu
        fix = kind.advice if is_wanted or gpus else ""
        return Finding(name=label, found="not installed", is_ok=not is_wanted, fix=fix)
    if name == "vllm":
        return _vllm(label, python)
    if name == "llama":
        built = ", ".join(sorted(python.llama_backends - {"base"})) or "unknown"
        is_slow = bool(gpus) and not python.has_gpu_llama
        fix = f'"{LLAMA_FOR_GPUS}" builds it for the GPUs' if is_slow else ""
        return Finding(name=label, found=f"installed, built for {built}", fix=fix)
    return Finding(name=label, found=f"transformers {python.versions.get('transformers', '?')}")


def _vllm(label: str, python: Interpreter) -> Finding:
    """vLLM loads with one version of torch only."""
    version = python.versions.get("vllm", "of unknown version")
    if mismatch := find_mismatch(python):
        torch = python.versions["torch"]
        found = f"{version}, which does not match torch {torch}"
        return Finding(name=label, found=found, is_ok=False, fix=mismatch)
    tested = "" if is_tested_vllm(version) else f"; tested is {TESTED_VLLM}"
    return Finding(name=label, found=f"{version}{tested}")


def _hardware(machine: Machine, store_dir: Path) -> Iterator[Finding]:
    yield Finding(name="cores", found=str(machine.cores))
    is_enough, memory = machine.memory_bytes >= MIN_MEMORY_BYTES, gigabytes(machine.memory_bytes)
    yield _require(is_enough, "memory", memory, fix="the quickstart needs 4 GB")
    yield _require(
        machine.free_disk_bytes >= MIN_DISK_BYTES,
        f"disk for {store_dir}",
        f"{gigabytes(machine.free_disk_bytes)} free",
        fix="free some space, or --set store.dir=DIR",
    )
    yield from _file_system(store_dir)
    if not machine.gpus:
        yield Finding(name="GPUs", found="none: everything runs on the CPU")
    for gpu in machine.gpus:
        free = f"{gpu.free_bytes / 1e9:.0f} of {gpu.memory_bytes / 1e9:.0f} GB free"
        users = "".join(f"; {user}" for user in machine.gpu_users.get(gpu.uuid, ()))
        yield Finding(name=f"GPU {gpu.index}", found=f"{gpu.name}, {free}, {gpu.uuid}{users}")
    if machine.hidden_gpus:
        yield Finding(name="hidden GPUs", found=machine.hidden_gpus)


def _file_system(store_dir: Path) -> Iterator[Finding]:
    mount = find_mount(store_dir)
    if mount is None:
        return
    found = f"{mount.kind} at {mount.point}"
    if not mount.is_network:
        yield Finding(name="file system", found=found)
        return
    yield Finding(
        name="file system",
        found=f"{found} ({mount.source}), a network file system: SQLite's locks and shared "
        "memory do not work there, and rows can be lost",
        is_ok=False,
        fix='--set store.dir=DIR on a local disk; "forge export sqlite" makes a file to share',
    )


def _sandbox() -> Finding:
    """The sandbox level of judges, tested in a child process, and why not a stronger one."""
    fix = f'{advice(uid=os.geteuid(), sysctls=read_sysctls())}; judge.isolation = "none" uses none'
    try:
        done = subprocess.run(
            [sys.executable, "-c", SANDBOX_PROBE],
            env=child_env(threads=1), capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name="sandbox", found=f"none: {error}", is_ok=False, fix=fix)
    if done.returncode == 0:
        return Finding(name="sandbox", found=done.stdout.strip())
    why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Finding(name="sandbox", found=f"none: {why}", is_ok=False, fix=fix)


def _sockets() -> Finding:
    try:
        with open_socket_dir() as folder:
            return Finding(name="sockets", found=str(folder.parent))
    except (ForgeError, OSError) as error:
        return Finding(name="sockets", found=str(error), is_ok=False, fix="set TMPDIR to /tmp")
