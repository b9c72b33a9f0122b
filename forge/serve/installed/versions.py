# pyright: strict
"""Modules and versions of an engine's interpreter, and the error line for versions that mismatch.

Called by `engines` (before anything starts) and by `forge doctor`. Imports nothing heavy; another
interpreter runs `interpreter.py`, once per process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from forge.errors import MachineError
from forge.process.devices import Vendor, inventory
from forge.process.environment import child_env
from forge.serve.installed import interpreter

if TYPE_CHECKING:
    from forge.config.schema import ServeTable

PYTHON_AT_LEAST = (3, 11)
"""The same as in pyproject.toml and in forge.install, which must load under older versions."""
ASK_TIMEOUT_S = 60.0
"""Maximum wait for another interpreter's answer."""
GPU_BACKENDS = {
    Vendor.NVIDIA: frozenset({"cuda", "vulkan"}),
    Vendor.AMD: frozenset({"hip", "vulkan"}),
}
"""Backends of llama.cpp for GPUs, as `make setup LLAMA=` names them."""
TESTED_VLLM = "0.24"
"""Minor version that `forge.serve.vllm` was tested with; pyproject.toml requires it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Modules and versions of an interpreter."""

    python: str
    """Its path for messages; empty for this process's interpreter."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    modules: frozenset[str] = frozenset()
    """Installed modules among those that engines need."""
    vllm_requires: Sequence[str] = ()
    """vLLM's requirements, as `torch==2.11.0`."""
    llama_backends: frozenset[str] = frozenset()
    """cpu, cuda, hip, vulkan, and libraries that are no devices."""

    @property
    def where(self) -> str:
        """ " in PATH" for messages; empty for this process's interpreter."""
        return f" in {self.python}" if self.python else ""

    @property
    def has_gpu_llama(self) -> bool:
        """True if llama.cpp was built for this machine's GPUs, or for any if it has none."""
        vendors = {gpu.vendor for gpu in inventory()} or set(Vendor)
        return any(self.llama_backends & GPU_BACKENDS[vendor] for vendor in vendors)


def read_interpreter(table: ServeTable | None = None) -> Interpreter:
    """The interpreter of `serve.python`, or else this one. Raises MachineError if it fails."""
    if table is None or (table.python is None and "PYTHONPATH" not in table.env):
        python, found = "", interpreter.describe()
    else:
        python = str(table.python or sys.executable)
        found = _ask(python, tuple(sorted(table.env.items())))
    return Interpreter(
        python=python,
        versions=found["versions"],
        modules=frozenset(found["modules"]),
        vllm_requires=found["vllm_requires"],
        llama_backends=frozenset(found["llama_backends"]),
    )


@cache
def _ask(python: str, env: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    # child_env keeps the file's folder off sys.path, so that no module of ours shadows theirs.
    argv = [python, str(interpreter.__file__)]
    try:
        done = subprocess.run(
            argv, env=child_env(threads=1, extra=dict(env)), capture_output=True, text=True,
            timeout=ASK_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return _checked(json.loads(done.stdout), python=python)
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}, no message"])[-1]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = str(error)
    raise MachineError(f'serve.python = "{python}" is not a working Python: {said}')


def _checked(found: Mapping[str, Any], *, python: str) -> Mapping[str, Any]:
    """Raises MachineError if no engine of forge can run in it."""
    major, minor = found["python"]
    if (major, minor) < PYTHON_AT_LEAST:
        needs = "forge needs {}.{} or newer".format(*PYTHON_AT_LEAST)
        raise MachineError(f'serve.python = "{python}" is Python {major}.{minor}; {needs}')
    if "forge" not in found["modules"]:
        raise MachineError(
            f'serve.python = "{python}" has no forge, and this forge is not a checkout: install'
            " its wheel there too, with --no-deps"
        )
    return found


def find_mismatch(found: Interpreter) -> str | None:
    """The error line if torch is not the version that vLLM was compiled against, or None.

    vLLM's libraries are linked against one torch: with another they do not load, or crash.
    """
    wanted = _pinned("torch", found.vllm_requires)
    torch, vllm = found.versions.get("torch"), found.versions.get("vllm")
    if wanted is None or vllm is None or torch is None or _public(torch) == _public(wanted):
        return None
    return (
        f"vllm {vllm}{found.where} needs torch {wanted}; found torch {torch}. Give vLLM an"
        " interpreter of its own: python3 -m venv vllm-env, then vllm-env/bin/pip install"
        f' "vllm=={TESTED_VLLM}.*", then serve.python = "vllm-env/bin/python"'
    )


def is_tested_vllm(version: str) -> bool:
    """True for the minor version of vLLM that forge was tested with."""
    return re.match(re.escape(TESTED_VLLM) + r"(\.|$)", version) is not None


def _pinned(name: str, requirements: Sequence[str]) -> str | None:
    """`2.11.0` of `torch==2.11.0; marker`; None without an exact version."""
    for line in requirements:
        found = re.match(rf"{name}\s*\(?==\s*([^\s;,)]+)", line)
        if found and "extra" not in line:
            return found.group(1)
    return None


def _public(version: str) -> str:
    """`2.11.0` of `2.11.0+cu130`."""
    return version.partition("+")[0]
