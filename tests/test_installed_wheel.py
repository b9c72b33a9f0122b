"""The wheel in a clean environment, by pip and by uv: commands that need no extra, and nothing of
the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from forge.origin import RECORD, read_origin
from tests.wheels import ROOT, TIMEOUT_S, build_wheel, pip

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with uv and hatchling from the index."""
    folder = tmp_path_factory.mktemp("tools")
    pip("install", "-q", "--target", str(folder), "uv", "hatchling")
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if ".dist-info/" not in name)


def run(*argv: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of a command, without this checkout on its path."""
    env = {**os.environ, "PYTHONPATH": "", **(env or {})}
    ran = subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return ran.returncode, ran.stdout + ran.stderr


def install(by: str, wheel: Path, into: Path, tools: Path) -> None:
    venv.create(into, with_pip=by == "pip")
    python = str(into / "bin/python")
    if by == "pip":
        return pip("install", "-q", str(wheel), python=python)
    uv = str(tools / "bin/uv")
    code, said = run(uv, "pip", "install", "-q", "--python", python, str(wheel), cwd=into)
    assert code == 0, said[-1000:]


@pytest.mark.parametrize("by", ["pip", "uv"])
def test_a_recipe_is_written_and_planned_without_a_checkout(
    by: str, wheel: Path, tools: Path, tmp_path: Path
) -> None:
    install(by, wheel, tmp_path / "venv", tools)
    python, forge = (str(tmp_path / "venv/bin" / name) for name in ("python", "forge"))
    commit = read_origin().commit[:12]
    assert re.search(rf"^forge \S+ \(commit {commit}\b", run(forge, "--version", cwd=tmp_path)[1])
    assert run(forge, "init", "quickstart", cwd=tmp_path)[0] == 0
    code, said = run(forge, "plan", "quickstart.toml", cwd=tmp_path)
    assert (code, "\n" in said.strip()) == (3, False), "the base has no engine"
    assert "pip install 'forge-kernels[llama]'" in said
    code, said = run(forge, "plan", "quickstart.toml", "--set=serve.engine=hf", cwd=tmp_path)
    assert (code, "pip install 'forge-kernels[train]'" in said) == (3, True)
    code, said = run(forge, "judge", "a.py", "b.py", "--device=cpu", cwd=tmp_path)
    assert code in (2, 3), said
    code, said = run(python, "-c", "import forge.tui, tui", cwd=tmp_path)
    assert "No module named 'tui'" in said


def test_a_wheel_claims_one_name_and_is_typed(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.partition("/")[0] for name in names} == {"forge"}
    wanted = {
        "py.typed",
        RECORD,
        "recipes/rows/trinity.toml",
        "recipes/schema.json",
        "tui/app.tcss",
    }
    assert {f"forge/{name}" for name in wanted} <= set(names)


def test_a_wheel_of_the_source_distribution_is_the_same(
    wheel: Path, tools: Path, tmp_path: Path
) -> None:
    code, said = run(
        sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT,
        env={"PYTHONPATH": str(tools)},
    )  # fmt: skip
    assert code == 0, said[-1000:]
    (source,) = tmp_path.glob("forge_kernels-*.tar.gz")
    with tarfile.open(source) as archive:
        assert not [member.name for member in archive if member.issym()]
    again = build_wheel(tmp_path / "again", source=source)
    assert names_in(again) == names_in(wheel)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert one.read(f"forge/{RECORD}") == other.read(f"forge/{RECORD}")
