"""`forge judge --shape` and `get_input_sets()`: with real judges, and mistakes in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from forge import cli
from forge.commands.judge.judge import parse_shapes
from forge.data.problem_files import Overrides
from tests.cli.relu_kernel import KERNEL

PROBLEM = """import torch
rows = 16
width = 64
class Model(torch.nn.Module):
    def forward(self, x):
        assert len(x) < 90, "too many rows"
        return torch.relu(x)
def get_inputs(rows=rows):
    return [torch.randn(rows, width)]
def get_init_inputs():
    return []
"""
SETS = """def get_input_sets():
    return [get_inputs(), lambda: get_inputs(40), {"rows": 7}]
"""
ONE_SIZE = KERNEL.replace("(triton.cdiv(x.numel(), 256),)", "(4,)")
"""Right for 16 x 64 and smaller inputs alone."""
BY_CASES = KERNEL.replace(
    "        y = ", "        if x.shape[0] != 16:\n            return x\n        y = "
)
"""Honest at one shape alone."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p.py").write_text(PROBLEM)
    (tmp_path / "c.py").write_text(KERNEL)
    (tmp_path / "answers").mkdir()
    for name, code in {"by_cases": BY_CASES, "c": KERNEL, "one_size": ONE_SIZE}.items():
        (tmp_path / "answers" / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def judge_all(*argv: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Verdicts of a directory's candidates, by name: of one judge, whose start takes seconds."""
    code = cli.run_command(["judge", *argv, "--device", "cpu", "--workers", "1", "--json"])
    listed = json.loads(capsys.readouterr().out)
    is_unjudgeable = any(each["status"] == "unjudgeable" for each in listed)
    assert code == (2 if is_unjudgeable else 0)
    return {Path(each["candidate"]).stem: each for each in listed}


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_a_kernel_for_one_size_passes_at_its_own_and_fails_at_others(capsys):
    assert judge_all("p.py", "answers", capsys=capsys)["one_size"]["status"] == "correct"
    shapes = ("--shape", "rows=16", "--shape", "rows=40,width=32")
    verdicts = judge_all("p.py", "answers", *shapes, capsys=capsys)
    honest = verdicts.pop("c")
    assert honest["status"] == "correct"
    assert [each["name"] for each in honest["shapes"]] == ["rows=16", "rows=40, width=32"]
    assert list(verdicts) == ["by_cases", "one_size"]
    for verdict in verdicts.values():
        assert verdict["status"] != "correct"
        assert verdict["detail"].startswith("shape 2 of 2 (rows=40, width=32): ")


UNUSABLE = {
    "2_none": ("[]", "get_input_sets() returns 0 sets; 1 to 16 allowed"),
    "4_refused": (
        "[{'rows': 1}, {'rows': 99}]",
        "shape 2 of 2 (rows=99): the reference of 4_refused fails: AssertionError: too many rows",
    ),
    "3_unknown": ("[{'lines': 2}]", "unexpected keyword argument 'lines'"),
}
"""Problem to what `get_input_sets` returns, and the words about it."""


def test_every_input_set_of_a_file_is_judged_and_unusable_ones_blame_no_candidate(folder, capsys):
    for place in ("problems", "given"):
        (folder / place).mkdir()
    (folder / "problems" / "1_sets.py").write_text(PROBLEM + SETS)
    (folder / "given" / "1_c.py").write_text(KERNEL)
    (folder / "given" / "1_one_size.py").write_text(ONE_SIZE)
    for name, (returned, _) in UNUSABLE.items():
        source = f"{PROBLEM}def get_input_sets():\n    return {returned}\n"
        (folder / "problems" / f"{name}.py").write_text(source)
        (folder / "given" / f"{name}.py").write_text(KERNEL)
    verdicts = judge_all("problems", "given", capsys=capsys)
    assert verdicts["1_c"]["status"] == "correct"
    names = ["float32[16, 64]", "float32[40, 64]", "rows=7"]
    assert [each["name"] for each in verdicts["1_c"]["shapes"]] == names
    assert verdicts["1_one_size"]["status"] == "wrong"
    assert verdicts["1_one_size"]["detail"].startswith("shape 2 of 3 (float32[40, 64]): ")
    for name, (_, words) in UNUSABLE.items():
        assert verdicts[name]["reason"] == "reference_failed"
        assert words in verdicts[name]["detail"]
        assert "\n" not in verdicts[name]["detail"]


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_a_shape_at_which_a_problem_does_not_run_is_named_by_its_check(capsys):
    argv = ["problems", "check", "p.py", "--device", "cpu", "--shape", "rows=99", "--json"]
    assert cli.run_command(argv) == 2
    (found,) = json.loads(capsys.readouterr().out)["problems"]
    assert found["flags"] == {
        "does_not_run": "shape 1 of 1 (rows=99): line 6: AssertionError: too many rows"
    }


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["dim=1"], "--shape dim: p.py has no such module constant"),
        (["rows=1", "q:rows=1"], "--shape q: no single problem of this name or number"),
        (["rows"], "--shape rows: a name and a value"),
        ([""], "--shape : a name and a value"),
        (["rows=[1]"], "--shape rows=[1]: found [1]; a number"),
        (["rows=1", "width=3", "rows=1"], "--shape rows=1: found the same shape as before"),
        ([f"rows={n}" for n in range(17)], "--shape: found 17 shapes; 1 to 16"),
        (["@no.toml"], "no.toml: cannot be read"),
        (["@empty.toml"], "--shape @empty.toml: found an empty table"),
    ],
)
def test_a_shape_that_cannot_be_used_exits_2_in_one_line(folder, items, expected, capsys):
    (folder / "empty.toml").write_text("")
    argv = [part for item in items for part in ("--shape", item)]
    for command in (["judge", "p.py", "c.py"], ["problems", "check", "p.py"]):
        assert cli.run_command([*command, *argv]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert expected in printed.err
        assert printed.err.count("\n") == 1


def test_a_shape_is_a_list_of_assignments_for_all_problems_or_for_one(tmp_path):
    sizes = tmp_path / "sizes.toml"
    sizes.write_text("N = 4\n[3]\nM = 5\n")
    assert parse_shapes([]) == ()
    items = ["N=1", "3_matmul:N=512, M=3", "N=4,3:M=7,K=2", "mode=a,b,N=3", f"@{sizes}"]
    assert parse_shapes(items) == (
        Overrides(everywhere={"N": 1}),
        Overrides(by_problem={"3_matmul": {"N": 512, "M": 3}}),
        Overrides(everywhere={"N": 4}, by_problem={"3": {"M": 7, "K": 2}}),
        Overrides(everywhere={"mode": "a,b", "N": 3}),
        Overrides(everywhere={"N": 4}, by_problem={"3": {"M": 5}}),
    )
