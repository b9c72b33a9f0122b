"""The wheel in a clean environment, by pip and by uv: commands that need no extra, nothing of the
checkout, and ten lines for a verdict. A real installation is measured in `bench/RESULTS.md`."""

import os
import re
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from forge.origin import RECORD, read_origin
from tests.adapters.kernels import ANSWER, PROBLEM

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]
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
def test_a_recipe_is_written_and_planned_without_a_checkout(by, wheel, tools, tmp_path):
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


def test_a_wheel_claims_one_name_and_is_typed(wheel):
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


def test_a_wheel_of_the_source_distribution_is_the_same(wheel, tools, tmp_path):
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


def test_ten_lines_give_a_verdict_from_the_wheel_within_30_s(wheel, tmp_path):
    """With the packages of `forge-kernels[judge]` alone: links to those of this environment."""
    clean = tmp_path / "venv"
    venv.create(clean, with_pip=False)
    (site,) = clean.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
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
