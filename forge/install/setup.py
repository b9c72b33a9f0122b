"""Runs setup: nothing if the stamp is valid, else checks the machine, runs the steps, stamps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from forge.errors import MachineError
from forge.install.llama_build import choose_llama
from forge.install.machine import REPAIR_BYTES, VENV_BYTES, find_faults, read_machine
from forge.install.project import load_project
from forge.install.stamp import Stamp, find_python, fingerprint, is_done, read_stamp, write_stamp
from forge.install.steps import Installer
from forge.install.torch_build import (
    TORCH_INDEX,
    choose_torch,
    detect_accelerator,
    is_reachable,
    read_rocm_version,
)


def setup(root: Path, env: Mapping[str, str]) -> None:
    """Makes or updates the `.venv` of a checkout.

    Args:
        root: directory of the checkout.
        env: environment variables. `TORCH` and `LLAMA` override the choices. `PYTHON` means that
            the user asked for this interpreter (make exports its command line); without it an
            existing environment keeps its own.

    Raises:
        MachineError: one line per fault.
    """
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
    _check_machine(root, env, name=name)
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


def _check_machine(root: Path, env: Mapping[str, str], *, name: str) -> None:
    is_installed = (root / ".venv" / "bin" / "forge").exists()
    need_bytes = REPAIR_BYTES if is_installed else VENV_BYTES.get(name, VENV_BYTES["cpu"])
    faults = find_faults(read_machine(root, env), need_bytes=need_bytes)
    if faults:
        raise MachineError("\n".join(faults))
