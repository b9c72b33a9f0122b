"""Builds the wheel and installs packages for tests that use it; skips them without an index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 200


def build_wheel(folder: Path, *, source: Path = ROOT) -> Path:
    """The wheel of a checkout, or of a source distribution."""
    pip("wheel", "--no-deps", "-w", str(folder), str(source))
    (wheel,) = folder.glob("forge_kernels-*.whl")
    return wheel


def pip(*args: str, python: str = sys.executable) -> None:
    """Runs pip; skips the test if no package index is reached."""
    argv = [python, "-m", "pip", "--disable-pip-version-check", *args]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ran.returncode != 0 and "No matching distribution found for" in ran.stderr:
        pytest.skip(f"no package index here: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr[-1000:]
