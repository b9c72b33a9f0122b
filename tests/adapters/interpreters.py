"""Interpreters that have other people's frameworks, for tests.

`make frameworks` installs OpenEnv's client and verifiers in `.frameworks`; FORGE_<NAME>_PYTHON
names another interpreter.
"""

import os
import subprocess
import sys

import pytest

from tests.evalpool.judged import ROOT

INSTALLED = ROOT / ".frameworks" / "bin" / "python"


def python_with(name: str, *, path: str = "") -> str:
    """An interpreter that imports a framework, with a PYTHONPATH; skips the test if there is
    none."""
    default = INSTALLED if INSTALLED.exists() else sys.executable
    python = os.environ.get(f"FORGE_{name.upper()}_PYTHON", str(default))
    probe = [python, "-c", f"import {name}"]
    env = {**os.environ, "PYTHONPATH": path}
    if subprocess.run(probe, env=env, capture_output=True, check=False).returncode:
        pytest.skip(
            f"{name} is not installed: make frameworks, or FORGE_{name.upper()}_PYTHON for another"
            " interpreter"
        )
    return python
