# pyright: strict
"""The GPUs that judges without one judge for: `judge.target`.

Used by plans and commands, which refuse a target that the installed Triton cannot compile for.
Triton itself knows only by compiling, so a child does that once for a target.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from forge.config.schema import JudgeTable
from forge.errors import ConfigError
from forge.evalpool.cards import FLOPS_PER_CLOCK

KEY = "judge.target"
DEFAULT: str = JudgeTable().target
"""Not tried: every supported Triton compiles for it."""
CHILD = "forge.evalpool.judge.compiler.child"
TIMEOUT_S = 60.0


def require_target(target: str, *, key: str = KEY) -> None:
    """Raises ConfigError if the installed Triton cannot compile for a target."""
    if target != DEFAULT and (fault := _fault(target)):
        known = ", ".join(map(target_name, FLOPS_PER_CLOCK))
        raise ConfigError(
            f'{key}: found "{target}", and the installed Triton cannot compile for it ({fault}); '
            f"allowed are those that it can, such as {known}"
        )


def target_name(arch: int | str) -> str:
    """A target by its architecture: `cuda:90`, `hip:gfx942`."""
    return f"cuda:{arch}" if isinstance(arch, int) else f"hip:{arch}"


@cache
def _fault(target: str) -> str:
    command = (sys.executable, "-m", CHILD, target)
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {TIMEOUT_S:g} s"
    lines = child.stdout.strip().splitlines()
    return "" if child.returncode == 0 else lines[-1] if lines else f"exit {child.returncode}"
