"""Exported kernels: complete, and tested by their own test."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from forge.commands.kernels import export_kernels
from forge.errors import ConfigError
from forge.records import Group, Problem, Status
from forge.store.layout import RunPaths
from tests.cli.relu_kernel import KERNEL
from tests.store.storefactory import attempt, group, problem, timing, write_run

SOURCE = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""


def solved(
    group_id: int, each: Problem, *, code: str = KERNEL, speedup: float | None = None
) -> Group:
    made = group(
        group_id, [[Status.CORRECT]], problem_id=each.problem_id,
        speed=None if speedup is None else timing(speedup),
    )  # fmt: skip
    (trajectory,) = made.trajectories
    turns = tuple(replace(turn, code=code) for turn in trajectory.turns)
    return replace(made, trajectories=(replace(trajectory, turns=turns),))


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run with kernels for two problems whose names end alike, one of them with times."""
    one = replace(problem(0), problem_id="level1/19_ReLU", source=SOURCE)
    two = replace(one, problem_id="level2/19_ReLU")
    failed = group(4, [[Status.WRONG]], problem_id="softmax-0001")
    faster = solved(3, two, code=KERNEL.replace("256", "128"), speedup=2.5)
    records = [
        attempt(), one, two, problem(1),
        solved(1, one), solved(2, two, speedup=1.5), faster, failed,
    ]  # fmt: skip
    anyio.run(write_run, tmp_path / "runs" / "toy-1", records)
    return RunPaths(tmp_path / "runs" / "toy-1")


def files_of(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_each_problem_has_its_best_kernel_with_its_verdict(paths, tmp_path):
    found = export_kernels(paths, out=tmp_path / "out", license="other")
    files = files_of(tmp_path / "out")
    kinds = ("kernel.py", "problem.py", "test_kernel.py", "verdict.json")
    assert set(files) == {
        "README.md", "NOTICE.md",
        *(f"{name}/{kind}" for name in ("k19_relu", "k19_relu_2") for kind in kinds),
    }  # fmt: skip
    assert [each["speedup"] for each in found["kernels"]] == [2.5, None]
    first = json.loads(files["k19_relu/verdict.json"])
    assert (first["problem_id"], first["speedup"], first["run"]) == ("level2/19_ReLU", 2.5, "toy-1")
    assert "BLOCK=128" in files["k19_relu/kernel.py"]
    assert files["k19_relu_2/problem.py"] == SOURCE
    assert "2.50x (at least 2.25x)" in files["README.md"]
    assert "No licence was chosen" in files["NOTICE.md"]
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")


def test_bad_input_is_one_line(paths, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("")
    anyio.run(write_run, tmp_path / "runs" / "bad-1", [attempt(), problem(0)])
    for run, out, license, message in (
        (paths, full, "mit", "full: is not empty; a new or an empty directory"),
        (paths, full / "x", "mit", "x: is not empty"),
        (paths, tmp_path / "a", "my licence", "--license my licence: an identifier"),
        (RunPaths(tmp_path / "runs" / "bad-1"), tmp_path / "a", "mit", "bad-1: found no"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            export_kernels(run, out=out, license=license)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "a").exists()


def test_an_empty_directory_is_filled(paths, tmp_path):
    (tmp_path / "out").mkdir()
    export_kernels(paths, out=tmp_path / "out", license="mit")
    assert (tmp_path / "out" / "README.md").is_file()
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.long
def test_the_exported_test_passes_and_fails_for_another_kernel(paths, tmp_path):
    export_kernels(paths, out=tmp_path / "out", license="mit")
    folder = tmp_path / "out" / "k19_relu"

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "test_kernel.py"], cwd=folder, capture_output=True, text=True,
            timeout=200, check=False,
        )  # fmt: skip

    passed = run()
    assert passed.returncode == 0, passed.stdout
    assert "1 passed" in passed.stdout
    kernel = folder / "kernel.py"
    kernel.write_text(kernel.read_text().replace("0.0)", "0.5)"))
    failed = run()
    assert failed.returncode == 1
    assert "wrong" in failed.stdout
