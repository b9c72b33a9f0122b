"""The steps of setup: venv → torch → dependencies → llama.cpp → forge itself, and bytecode.

torch is first, and the installed build is pinned, so that no later step replaces it. Each step may
run again: pip skips what is complete.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from forge.errors import MachineError
from forge.install.command import InstallProgress, run_command
from forge.install.llama_build import LINK_ARGS
from forge.install.project import Project, drop_triton, pin_torch
from forge.install.stamp import find_damaged, find_version

if TYPE_CHECKING:
    from forge.install.llama_build import LlamaChoice
    from forge.install.torch_build import TorchChoice

LLAMA_PROBE = "import llama_cpp; llama_cpp.llama_backend_init()"
"""Fails if a cached wheel was compiled for another machine's instruction set."""
EARLIER_NAME = "forge"
"""Distribution of an older checkout: its removal would take `bin/forge` of the new one with it."""
PROBE_S = 300.0
"""Maximum time for short commands: making a venv, importing a module."""
QUOTED_LINES = 15
"""Lines of the log in an error message."""


class Installer:
    """Runs the steps against the `.venv` of one checkout."""

    def __init__(self, root: Path, project: Project, env: Mapping[str, str]) -> None:
        self._root = root
        self._venv = root / ".venv"
        self._python = self._venv / "bin" / "python"
        self._project = project
        self._env = dict(env, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")

    def make_venv(self, *, is_unfit: bool) -> None:
        """Repairs a working environment; makes a new one if it is broken or unfit (moved, or made
        with another Python)."""
        if is_unfit or not self._succeeds("import pip"):
            self._create_venv()
        for info in find_damaged(self._site):
            shutil.rmtree(info)  # pip then installs it again
        for leftover in self._site.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def install_torch(self, choice: TorchChoice, *, is_other: bool) -> None:
        """Installs torch; `is_other` if another build is installed that could satisfy pip."""
        label = f"2/5 torch ({choice.name})"
        if is_other:
            self._pip(label, "--force-reinstall", "--no-deps", *choice.pip_args)
        self._pip(label, *choice.pip_args)

    def install_rest(self, llama: LlamaChoice) -> None:
        """Installs dependencies, llama.cpp, then forge without dependencies: torch is unchanged."""
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
        self._install_llama(str(pinned), llama)
        if find_version(self._site, EARLIER_NAME) is not None:
            self._run("5/5 forge", "pip", "uninstall", "-y", EARLIER_NAME)
        self._pip("5/5 forge", "--no-deps", "-e", str(self._root))

    def compile_bytecode(self) -> None:
        """Compiles all packages on all cores; pip does so on one. A file that cannot be compiled,
        such as a package's template, is no error: pip ignores it, too."""
        self._run("5/5 bytecode", "compileall", "-q", "-j", "0", str(self._site), is_needed=False)

    def _install_llama(self, pinned: str, choice: LlamaChoice) -> None:
        """Installs the chosen build of llama.cpp.

        pip caches wheels by version only, so a build with other arguments neither uses nor fills
        the cache. Since it takes minutes, it is kept if it was made by the same arguments and
        loads.
        """
        is_plain = choice.name == "cpu" and not self._env.get("CMAKE_ARGS")
        ldflags = " ".join(filter(None, (LINK_ARGS, self._env.get("LDFLAGS"))))
        by = f"CMAKE_ARGS={choice.cmake_args}\nLDFLAGS={ldflags}\n"
        args_file = self._venv / "llama-cmake-args"
        made_by = args_file.read_text(encoding="utf-8") if args_file.exists() else None
        is_same = made_by == by
        if is_same and not is_plain and self._has_llama(choice):
            return
        self._env["CMAKE_ARGS"] = choice.cmake_args
        self._env["LDFLAGS"] = ldflags
        if choice.path:
            self._env["PATH"] = f"{choice.path}{os.pathsep}{self._env.get('PATH', os.defpath)}"
        label, wanted = "4/5 llama.cpp", ("-v", "-c", pinned, self._project.llama)
        over, anew = ("--force-reinstall", "--no-deps"), "--no-cache-dir"
        args_file.unlink(missing_ok=True)
        if not is_plain:
            self._pip(label, anew, *over, *wanted)
            self._pip(label, *wanted)  # its dependencies, at the first installation
        else:
            self._pip(label, *(over if made_by and not is_same else ()), *wanted)
            if not self._succeeds(LLAMA_PROBE):
                self._pip(label, anew, *over, *wanted)
        if choice.name != "cpu" and not self._has_llama(choice):
            raise MachineError(
                f"{label}: it was built for {choice.name} but does not load here; the end of"
                f" {self._venv / 'setup.log'} shows the build,"
                f' {self._python} -c "{LLAMA_PROBE}" the reason'
            )
        args_file.write_text(by, encoding="utf-8")

    def _has_llama(self, choice: LlamaChoice) -> bool:
        """True if the wanted version and build is installed and loads."""
        wanted = self._project.llama.partition("==")[2]
        library = self._site / "llama_cpp" / "lib" / choice.library
        is_there = find_version(self._site, "llama-cpp-python") == wanted and library.exists()
        return is_there and self._succeeds(LLAMA_PROBE)

    @property
    def _site(self) -> Path:
        return next(self._venv.glob("lib/python3*/site-packages"))

    def _create_venv(self) -> None:
        progress = InstallProgress("1/5 environment", stream=sys.stderr, now=time.monotonic())
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
        """Runs pip with progress; its output goes to `.venv/setup.log`, whose end errors quote."""
        self._run(label, "pip", "install", "--no-compile", *args)

    def _run(self, label: str, module: str, *args: str, is_needed: bool = True) -> None:
        argv = [str(self._python), "-m", module, *args]
        log_path = self._venv / "setup.log"
        progress = InstallProgress(label, stream=sys.stderr, now=time.monotonic())
        with log_path.open("ab") as log:
            log.write(f"$ {shlex.join(argv)}\n".encode())
            returncode = run_command(argv, env=self._env, log=log, progress=progress)
        progress.end(now=time.monotonic())
        if returncode != 0 and is_needed:
            lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
            end = "\n".join(lines[-QUOTED_LINES:])
            raise MachineError(f"{label}: {module} failed. The end of {log_path}:\n{end}")
