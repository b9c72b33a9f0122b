"""The steps that fill an environment: venv → torch → dependencies → llama.cpp → forge itself.

torch goes first, and what came is pinned, so that nothing later swaps its build. Each step may
run again: pip skips what is whole.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.install.command import run_command
from forge.install.installed import find_damaged, find_version
from forge.install.progress import Progress
from forge.install.project import Project, drop_triton, pin_torch

if TYPE_CHECKING:
    from forge.install.torch_build import TorchChoice

LLAMA_CMAKE_ARGS = "-DLLAVA_BUILD=OFF"
"""No image input: the engine reads token ids. The user's CMAKE_ARGS comes after and wins."""
LLAMA_PROBE = "import llama_cpp; llama_cpp.llama_backend_init()"
"""Fails where a cached wheel was compiled for another machine's instructions."""
PROBE_S = 300.0
"""Deadline of the short commands: making a venv, importing a module."""
QUOTED_LINES = 15


class Installer:
    """Runs the steps against the `.venv` of one checkout."""

    def __init__(self, root: Path, project: Project, env: Mapping[str, str]) -> None:
        self._root = root
        self._venv = root / ".venv"
        self._python = self._venv / "bin" / "python"
        self._project = project
        self._env = dict(env, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")

    def make_venv(self, *, is_unfit: bool) -> None:
        """Keeps a working one, mended. One that is broken, moved or of another Python starts
        again."""
        if is_unfit or not self._succeeds("import pip"):
            self._create_venv()
        for info in find_damaged(self._site):
            shutil.rmtree(info)  # pip then takes it for absent, and installs it over what is there
        for leftover in self._site.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def install_torch(self, choice: TorchChoice, *, is_other: bool) -> None:
        """`is_other`: another build is installed, and its version may satisfy the requirement."""
        label = f"2/5 torch ({choice.name})"
        if is_other:
            self._pip(label, "--force-reinstall", "--no-deps", *choice.pip_args)
        self._pip(label, *choice.pip_args)

    def install_rest(self) -> None:
        """Dependencies, llama.cpp, then forge without dependencies: torch stays as it is."""
        torch = find_version(self._site, "torch")
        if torch is None:
            raise MachineError(
                "TORCH= must be cpu, cuda, rocm or a requirement that installs torch"
            )
        triton = find_version(self._site, "triton")
        pinned = self._venv / "constraints.txt"
        pinned.write_text(
            pin_torch(self._project.constraints, torch=torch, triton=triton), encoding="utf-8"
        )
        wanted = drop_triton(self._project.requirements, torch=torch, triton=triton)
        self._pip("3/5 dependencies", "-c", str(pinned), *wanted)
        self._install_llama(str(pinned))
        self._pip("5/5 forge", "--no-deps", "-e", str(self._root))

    def _install_llama(self, pinned: str) -> None:
        """pip caches a wheel by version alone: not used where CMAKE_ARGS asks for another."""
        given = self._env.get("CMAKE_ARGS", "")
        self._env["CMAKE_ARGS"] = f"{LLAMA_CMAKE_ARGS} {given}".strip()
        anew = ("--no-cache-dir", "--force-reinstall", "--no-deps")
        label, wanted = "4/5 llama.cpp", ("-v", "-c", pinned, self._project.llama)
        self._pip(label, *(anew if given else ()), *wanted)
        if not self._succeeds(LLAMA_PROBE):
            self._pip(label, *anew, *wanted)

    @property
    def _site(self) -> Path:
        return next(self._venv.glob("lib/python3*/site-packages"))

    def _create_venv(self) -> None:
        progress = Progress("1/5 environment", stream=sys.stderr, now=time.monotonic())
        argv = [sys.executable, "-m", "venv", "--clear", str(self._venv)]
        made = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_S, check=False)
        progress.end(now=time.monotonic())
        if made.returncode != 0:
            raise MachineError(f"{shlex.join(argv)} failed:\n{made.stdout}{made.stderr}".strip())

    def _succeeds(self, code: str) -> bool:
        try:
            argv = [str(self._python), "-c", code]
            ran = subprocess.run(argv, capture_output=True, timeout=PROBE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ran.returncode == 0

    def _pip(self, label: str, *args: str) -> None:
        """Shows progress, keeps all output in `.venv/setup.log`; a failure quotes the log's end."""
        argv = [str(self._python), "-m", "pip", "install", *args]
        log_path = self._venv / "setup.log"
        progress = Progress(label, stream=sys.stderr, now=time.monotonic())
        with log_path.open("ab") as log:
            log.write(f"$ {shlex.join(argv)}\n".encode())
            returncode = run_command(argv, env=self._env, log=log, progress=progress)
        progress.end(now=time.monotonic())
        if returncode != 0:
            lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
            end = "\n".join(lines[-QUOTED_LINES:])
            raise MachineError(f"{label}: pip failed. The end of {log_path}:\n{end}")
