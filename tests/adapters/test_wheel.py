"""The built wheel in a clean environment with the packages of `forge-kernels[judge]` alone: ten
lines, a verdict.

The packages are links to those of this environment, so that nothing is downloaded but what builds
the wheel. A real installation is measured in `bench/RESULTS.md`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.adapters.kernels import ANSWER, PROBLEM
from tests.wheels import build_wheel

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 30.0
TEN_LINES = """
import sys
import forge

problem, answer = sys.argv[1:]
verdict = forge.judge(problem, answer, device="cpu")
print(verdict.status, verdict.reason)
print(forge.reward(verdict).value)
print(forge.__file__)
print(verdict.feedback.splitlines()[0])
print([name for name in ("torch", "trl", "textual", "transformers") if name in sys.modules])
"""
FORBIDDEN = ("trl", "textual", "transformers", "datasets", "peft", "tokenizers", "pyarrow")


def needed(requirements: list[str], *, extra: str) -> set[str]:
    """Names of the distributions that these requirements install."""
    found: set[str] = set()
    pending = [(line, extra) for line in requirements]
    while pending:
        line, of = pending.pop()
        one = Requirement(line)
        if one.marker is not None and not one.marker.evaluate({"extra": of}):
            continue
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name not in found:
            found.add(name)
            pending += [(each, "") for each in metadata.requires(name) or []]
    return found


def link(names: set[str], site: Path) -> None:
    """Links the files of these distributions into another environment."""
    for name in names:
        for file in metadata.files(name) or []:
            top = Path(file.parts[0])
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if top.name != ".." and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)


def test_ten_lines_give_a_verdict_from_the_wheel_within_30_s(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "dist")
    clean = tmp_path / "venv"
    venv.create(clean, with_pip=False)
    (site,) = clean.glob("lib/python3*/site-packages")
    argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    argv += ["--target", str(tmp_path / "unpacked"), str(wheel)]
    subprocess.run(argv, check=True, timeout=100, capture_output=True)
    for part in (tmp_path / "unpacked").iterdir():
        part.rename(site / part.name)
    (info,) = site.glob("forge_kernels-*.dist-info")
    lines = (info / "METADATA").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist" in line]
    names = needed(wanted, extra="judge")
    assert names.isdisjoint(FORBIDDEN)
    assert {"torch", "triton", "pydantic", "anyio"} <= names
    link(names, site)

    began = time.monotonic()
    ran = subprocess.run(
        [str(clean / "bin" / "python"), "-c", TEN_LINES, PROBLEM, ANSWER],
        capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path, env={},
    )  # fmt: skip
    seconds = time.monotonic() - began
    assert ran.returncode == 0, ran.stderr[-2000:]
    status, value, file, feedback, heavy = ran.stdout.splitlines()
    assert (status, value, feedback, heavy) == ("correct ok", "0.8", "The answer is correct.", "[]")
    assert Path(file).is_relative_to(site)
    assert seconds < LIMIT_S
