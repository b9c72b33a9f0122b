"""`forge problems check`: a table or JSON for any directory, and the right exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forge import cli
from forge.commands.judge.judge import examined, parse_overrides
from forge.errors import ConfigError
from forge.records.examination import Examination, Flag

ROOT = Path(__file__).parents[2]
TAIL = """
def get_inputs():
    return [torch.randn(batch_size, 8)]
def get_init_inputs():
    return []
"""
MODEL = """import os, torch
batch_size = 4
class Model(torch.nn.Module):
    def forward(self, x):
"""
RELU = f"{MODEL}        return torch.relu(x){TAIL}"
PRINTING = f"{MODEL}        print('[red]boo', '\\x1b[31m')\n        return torch.relu(x){TAIL}"
HOSTILE = {
    "1_exit.py": f"{MODEL}        os._exit(0){TAIL}",
    "2_print.py": PRINTING,
    "10_bomb.py": f"a = b'x'\nwhile True: a += a\n{MODEL}        return x{TAIL}",
    "11_words.py": f"{MODEL}        raise ValueError('[red]no\\x1b[31m\\n\\x07'){TAIL}",
    "12_syntax.py": "def (",
    "13_binary.py": b"\xff\xfe\x00",
    "14_incomplete.py": "class Model: pass\n",
}


def check(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", "problems", "check", *argv],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "problems"
    folder.mkdir()
    return folder


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The words of a check without its progress, which a loaded machine sees."""
    return re.sub(r"examined: \d+ of \d+\n", "", done.stderr)


def test_usable_problems_exit_0_with_a_table(folder):
    (folder / "1_relu.py").write_text(RELU)
    (folder / "2_same.py").write_text(f"{MODEL}        return x * 1{TAIL}")
    done = check("problems", "--override", "batch_size=3", cwd=folder.parent)
    assert (done.returncode, said(done)) == (0, "")
    assert "float32[3, 8]" in done.stdout
    assert "the output is input 0" in done.stdout
    last = done.stdout.strip().splitlines()[-1]
    assert last == (
        "2 problems: 1 can be trained on, 1 would reward an answer that does less than asked"
    )


@pytest.mark.long
def test_each_hostile_file_gets_a_flag_and_the_check_continues(folder):
    for name, source in HOSTILE.items():
        (folder / name).write_bytes(source if isinstance(source, bytes) else source.encode())
    done = check(str(folder), "--json", cwd=folder.parent)
    assert (done.returncode, said(done)) == (2, "")
    report = json.loads(done.stdout)
    flags = {each["problem_id"]: each["flags"] for each in report["problems"]}
    assert list(flags) == [Path(name).stem for name in HOSTILE]  # 10 comes after 2
    assert "exit 0" in flags["1_exit"]["crash"]
    assert flags["2_print"] == {}
    assert "out_of_memory" in flags["10_bomb"]
    assert flags["11_words"] == {"does_not_run": "line 5: ValueError: [red]no [31m"}
    assert flags["12_syntax"]["does_not_run"].startswith("1: no Python")
    assert "cannot be read" in flags["13_binary"]["does_not_run"]
    assert "no get_inputs" in flags["14_incomplete"]["does_not_run"]
    assert (report["num_problems"], report["num_usable"], report["num_trainable"]) == (7, 1, 1)
    assert report["unjudgeable"] == {"does_not_run": 4, "crash": 1, "out_of_memory": 1}


def test_the_summary_counts_unjudgeable_problems_by_their_first_unusable_flag():
    flags = [{}, {Flag.IDENTITY: ""}, {Flag.SLOW: ""}, {Flag.NON_FINITE: "", Flag.CRASH: ""}]
    flags.append({Flag.SLOW: "", Flag.CRASH: ""})
    found = [Examination(problem_id=str(n), flags=each) for n, each in enumerate(flags)]
    assert examined(found) == (
        "5 problems: 1 can be trained on, 1 would reward an answer that does less than asked, "
        "3 unjudgeable (2 slow, 1 crash)"
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["nowhere"], "nowhere: no such file or directory"),
        (["problems"], "problems: no *.py in it"),
        (["problems/1_relu.py", "--override", "dim=3"], "--override dim: "),
        (["problems/1_relu.py", "--override", "batch_sise=3"], "did you mean batch_size?"),
        (["problems/1_relu.py", "--precision", "fp8"], "--precision fp8: "),
    ],
)
def test_what_cannot_be_checked_exits_2_in_one_line(
    folder, argv, expected, capsys,
    monkeypatch,
):  # fmt: skip
    if argv[0] != "problems":
        (folder / "1_relu.py").write_text(RELU)
    monkeypatch.chdir(folder.parent)
    assert cli.run_command(["problems", "check", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.count("\n") == 1


def test_overrides_take_values_as_toml_and_python_write_them():
    items = ["n=16", "rate = 0.5", "flag=true", "other=False", "mode=max", "text='a b'", "e=1e-5"]
    assert parse_overrides(items).everywhere == {
        "n": 16, "rate": 0.5, "flag": True, "other": False, "mode": "max", "text": "a b", "e": 1e-5,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--override 1x=2: a name and a value"):
        parse_overrides(["1x=2"])
    with pytest.raises(ConfigError, match=r"sizes=\[1, 2\]: found \[1, 2\]; a number"):
        parse_overrides(["sizes=[1, 2]"])
