"""Runs setup: nothing if the stamp is valid, else checks the machine, runs the steps, stamps.

Of a machine that lacks something, each missing thing is one line.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from forge.errors import MachineError
from forge.install.builds import (
    TORCH_INDEX,
    choose_llama,
    choose_torch,
    detect_accelerator,
    is_reachable,
    read_rocm_version,
)
from forge.install.project import (
    Stamp,
    find_python,
    fingerprint,
    is_done,
    load_project,
    read_stamp,
    write_stamp,
)
from forge.install.steps import Installer

GIB = 1 << 30
VENV_BYTES = {"cpu": 5 * GIB, "cuda": 14 * GIB, "rocm": 22 * GIB}
"""Room for the environment and pip's cache. CPU: 2.9 GiB measured; the others are estimates."""
REPAIR_BYTES = GIB
"""Room for updating an existing environment."""
BUILD_BYTES = GIB
"""Room in the temporary directory for llama.cpp's sources and objects."""


def setup(root: Path, env: Mapping[str, str]) -> None:
    """Makes or updates the `.venv` of a checkout. Raises MachineError: one line per fault. `root`:
    directory of the checkout. `env`: environment variables. `TORCH` and `LLAMA` override the
    choices. `PYTHON` means that the user asked for this interpreter (make exports its command
    line); without it an existing environment keeps its own."""
    venv = root / ".venv"
    project = load_project(root)
    wanted = fingerprint(project, root, env)
    asked = env.get("TORCH") or None
    asked_llama = env.get("LLAMA") or None
    python = "python{}.{}".format(*sys.version_info[:2]) if env.get("PYTHON") else None
    if is_done(venv, root=root, wanted=wanted, torch=asked, python=python, llama=asked_llama):
        return
    last = read_stamp(venv)
    name = asked or (last.torch if last else detect_accelerator(env))
    llama = choose_llama(asked_llama or (last.llama if last else "cpu"), env)
    is_installed = (venv / "bin" / "forge").exists()
    need_bytes = REPAIR_BYTES if is_installed else VENV_BYTES.get(name, VENV_BYTES["cpu"])
    if faults := find_faults(root, env, need_bytes=need_bytes):
        raise MachineError("\n".join(faults))
    choice = choose_torch(
        name,
        tested=project.torch,
        rocm=read_rocm_version(),
        is_cpu_index_up=name == "cpu" and is_reachable(TORCH_INDEX + "cpu/torch/"),
    )
    installer = Installer(root, project, env)
    is_moved = last is not None and last.root != str(root)
    installer.make_venv(is_unfit=is_moved or python not in (None, find_python(venv)))
    installer.install_torch(choice, is_other=last is not None and last.torch != name)
    installer.install_rest(llama)
    installer.compile_bytecode()
    stamp = Stamp(fingerprint=wanted, torch=name, root=str(root), llama=llama.name)
    write_stamp(venv, stamp)
    sys.stderr.write("setup: done\n")


def find_faults(root: Path, env: Mapping[str, str], *, need_bytes: int) -> list[str]:
    """One line per fault: what is missing, its purpose, and how to install it on Debian, Ubuntu."""
    python = "python{}.{}".format(*sys.version_info[:2])
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    free, temporary = shutil.disk_usage(str(root)).free, tempfile.gettempdir()
    free_there = shutil.disk_usage(temporary).free
    found: dict[str, object] = {
        "no make on PATH; Debian, Ubuntu: apt install make": _has_tool("", ("make",), env),
        f"{python} has no venv module with pip; Debian, Ubuntu: apt install {python}-venv": (
            find_spec("venv") and find_spec("ensurepip")
        ),
        f"no {header}, triton compiles its launchers against it;"
        f" Debian, Ubuntu: apt install {python}-dev": header.is_file(),
        "no C compiler on PATH, triton and llama.cpp need one; Debian, Ubuntu: apt install gcc": (
            _has_tool(env.get("CC", ""), ("cc", "gcc", "clang"), env)
        ),
        "no C++ compiler on PATH, llama.cpp is compiled here; Debian, Ubuntu: apt install g++": (
            _has_tool(env.get("CXX", ""), ("c++", "g++", "clang++"), env)
        ),
        f"disk: {_gib(free)} free beside the checkout, setup needs {_gib(need_bytes)}; free some,"
        " or move the checkout": free >= need_bytes,
        f"disk: {_gib(free_there)} free in {temporary}, compiling llama.cpp needs"
        f" {_gib(BUILD_BYTES)}; TMPDIR=... moves it": free_there >= BUILD_BYTES,
    }
    return [fault for fault, is_there in found.items() if not is_there]


def _has_tool(named: str, usual: Sequence[str], env: Mapping[str, str]) -> bool:
    """True for the tool that `CC` or `CXX` names, with any flags removed, else for a usual one."""
    names, path = shlex.split(named)[:1] or usual, env.get("PATH", os.defpath)
    return any(shutil.which(name, path=path) for name in names)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
