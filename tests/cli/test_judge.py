"""`forge judge`: a verdict for any input, or one line that says what to give; exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forge import cli
from forge.adapters.pools import JudgeSettings
from forge.commands.judge import judge as judging
from forge.commands.judge.judge import JudgeJob, JudgingRequest, parse_overrides
from forge.data.problem_files import find_problem
from forge.records import Status, Verdict
from tests.cli.relu_kernel import KERNEL, PROBLEM, WRONG
from tests.views.terminals import shown, told

ROOT = Path(__file__).parents[2]
SURROGATE = KERNEL.replace("        y = ", "        raise ValueError('\\ud800')\n        y = ")


def judge(*argv: str, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", "judge", *argv],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd, input=stdin,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with one problem."""
    (tmp_path / "p.py").write_text(PROBLEM)
    return tmp_path


REFUSED = {
    "": ("rejected (no_entry_point)",),
    "def f(:\n": ("compile_error (syntax_error)", ">    1 | def f(:"),
    "import os\n": ("rejected (no_entry_point)", "the answer does not define class ModelNew"),
    '"""\n```\n"""\ndef f(:\n': ("compile_error (syntax_error)",),
    "So:\n```cuda\n__global__ void f() {}\n```": ("rejected (cuda_source)",),
    "I cannot.": ("rejected (no_code_block)",),
}


@pytest.mark.parametrize("code", REFUSED)
def test_a_source_that_no_judge_would_run_needs_no_judge(code, folder, monkeypatch):
    """Otherwise a syntax error is reported after the start of a judge, which takes seconds."""

    def open_pool(*given: object, **keys: object) -> None:
        raise AssertionError("a judge was started")

    monkeypatch.setattr(judging, "open_private_pool", open_pool)
    candidate = folder / ("c.md" if code[:2] in ("So", "I ") else "c.py")
    candidate.write_text(code)
    request = JudgingRequest(problem=folder / "p.py", candidate=str(candidate))
    judged = judging.judge(request, JudgeSettings(device="cpu"))
    text = shown(judged.render(), width=100)
    for words in (*REFUSED[code], "refused by its source alone; nothing was run"):
        assert words in text
    assert judged.exit_code == 0
    assert judged.to_json()["isolation"] == "not run"


def test_overrides_change_what_is_judged_and_json_is_the_verdict(folder):
    """The candidate comes from stdin, within an answer's text."""
    options = ("--json", "--explain", "--no-timing", "--precision", "fp16", "--override", "rows=3")
    text = f"Here:\n```python\n{KERNEL}```\n"
    done = judge("p.py", "-", *options, "--compile", "ttir", cwd=folder, stdin=text)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert "launch kernel[1, 1, 1](x=input 0 f16[3, 64]" in answer.pop("explained")
    verdict = Verdict.from_json(answer)
    assert verdict.is_correct
    assert verdict.program
    assert verdict.timing is None


def test_a_directory_is_judged_into_a_table_and_a_summary(folder, monkeypatch, capsys):
    async def judge_all(jobs: list[JudgeJob], *rest: Any) -> list[Verdict]:
        found = {KERNEL: Status.CORRECT, WRONG: Status.WRONG}
        return [Verdict(status=found[job.code], reason="ok", detail="") for job in jobs]

    monkeypatch.setattr(judging, "_judge_all", judge_all)
    monkeypatch.chdir(folder)
    answers = folder / "answers"
    (answers / "deep").mkdir(parents=True)
    (answers / "a.py").write_text(KERNEL)
    (answers / "aa.py").write_text("def f(:\n")  # refused: no judge gets it
    (answers / "b.py").write_text(WRONG)
    (answers / "deep" / "c.py").write_text("")
    (answers / "note.txt").write_text("no candidate")
    lines = told(capsys, "judge", "p.py", "answers", "--device", "cpu").splitlines()
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["a.py", "p", "correct"], ["aa.py", "p", "compile_error"], ["b.py", "p", "wrong"],
        ["deep/c.py", "p", "rejected"],
    ]  # fmt: skip
    assert lines[-1] == "4 candidates: 1 correct, 1 wrong, 1 compile_error, 1 rejected"


def test_a_name_finds_the_best_matching_problem_or_none():
    known = ["level1/3_a.py", "level2/3_b.py", "level2/4_c.py", "5_d.py"]
    assert find_problem("level2/3_b.py", known) == "level2/3_b.py"
    assert find_problem("other/3_b.py", known) == "level2/3_b.py"
    assert find_problem("level1/3_x.py", known) == "level1/3_a.py"
    assert find_problem("level2/0003.py", known) == "level2/3_b.py"
    assert find_problem("3_x.py", known) is None
    assert find_problem("4_x.py", known) == "level2/4_c.py"
    assert find_problem("d.py", known) is None
    assert find_problem("x.py", ["y.py"]) is None
    assert find_problem("level2/4_c", known) == "level2/4_c.py"
    assert find_problem("5_d", known) == find_problem("5", known) == "5_d.py"


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts without judges: correct, their detail the problem's module constants."""

    async def judge_all(jobs: list[JudgeJob], *rest: Any) -> list[Verdict]:
        return [
            Verdict(status=Status.CORRECT, reason="ok", detail=_constants(job.problem.source))
            for job in jobs
        ]

    monkeypatch.setattr(judging, "_judge_all", judge_all)


def _constants(source: str) -> str:
    return " ".join(line for line in source.splitlines() if line.startswith(("rows", "dim")))


def make_folders(folder: Path) -> None:
    """Two problems with an answer each, a broken problem with an answer, an answer to none."""
    for name in ("problems", "answers"):
        (folder / name).mkdir()
    (folder / "problems" / "3_relu.py").write_text(f"dim = 2\n{PROBLEM}")
    (folder / "problems" / "13_twice.py").write_text(PROBLEM)
    (folder / "problems" / "5_broken.py").write_text("class Model: pass\n")
    for name in ("3_mine", "13_twice", "5_mine", "helpers"):
        (folder / "answers" / f"{name}.py").write_text(KERNEL)


@pytest.mark.usefixtures("described")
def test_a_problem_of_a_folder_has_sizes_of_its_own(folder):
    make_folders(folder)
    sizes = folder / "sizes.toml"
    sizes.write_text('dim = 4\n[3]\nrows = 7\n["problems/13_twice.py"]\nrows = 6')
    items = ["rows=5", f"@{sizes}", "13:rows=9"]
    request = JudgingRequest(
        problem=folder / "problems",
        candidate=str(folder / "answers"),
        overrides=parse_overrides(items),
    )
    judged = judging.judge(request, JudgeSettings(device="cpu"))
    details = {
        job.name: verdict.detail for job, verdict in zip(judged.jobs, judged.verdicts, strict=True)
    }
    assert details == {"13_twice.py": "rows = 9", "3_mine.py": "dim = 4 rows = 7"}


@pytest.mark.usefixtures("described")
def test_files_without_a_problem_are_named_and_the_others_judged(folder):
    make_folders(folder)
    request = JudgingRequest(problem=folder / "problems", candidate=str(folder / "answers"))
    judged = judging.judge(request, JudgeSettings(device="cpu"))
    lines = shown(judged.render(), width=200).splitlines()
    assert lines[-5:-2] == ["2 candidates: 2 correct", "", "2 files not judged:"]
    assert "5_broken.py: no get_inputs and no get_init_inputs" in lines[-2]
    assert lines[-1].startswith("helpers.py: ")
    assert lines[-1].endswith("problems has no single problem of this name or number")
    assert {each["candidate"]: each["status"] for each in judged.to_json()} == {
        "13_twice.py": "correct", "3_mine.py": "correct", "5_mine.py": None, "helpers.py": None,
    }  # fmt: skip
    assert judged.exit_code == 0


@pytest.mark.long
def test_any_text_gets_a_verdict_with_a_detail_and_the_judge_survives(folder):
    answers = {
        "1_empty": ("", "rejected"),
        "2_words": ("nothing but words", "compile_error"),
        "3_syntax": ("def (", "compile_error"),
        "4_no_class": ("x = 1\n", "rejected"),
        "5_long": (f"# {'x' * (5 << 20)}\n{KERNEL}", "rejected"),
        "6_half_a_character": (SURROGATE, "runtime_error"),
        "7_null": ("x = '\0'", "compile_error"),
        "8_good": (KERNEL, "correct"),
    }
    (folder / "answers").mkdir()
    for name, (text, _) in answers.items():
        (folder / "answers" / f"{name}.py").write_text(text)
    done = judge("p.py", "answers", "--json", "--workers", "1", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    listed = {each["candidate"][:-3]: each for each in json.loads(done.stdout)}
    assert {name: each["status"] for name, each in listed.items()} == {
        name: status for name, (_, status) in answers.items()
    }
    assert all(each["detail"] for each in listed.values() if each["status"] != "correct")
    assert listed["5_long"]["reason"] == "too_long"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["p.py", "missing.py"], "missing.py: no such file"),
        (["p.py", "binary.py"], "binary.py: byte 0xff at 2 is not UTF-8"),
        (["p.py", "-"], "stdin: byte 0xff at 0 is not UTF-8"),
        (["p.py", "empty"], "empty: no *.py in it"),
        (["none.py", "c.py"], "none.py: no get_inputs and no get_init_inputs"),
        (["p.py", "c.py", "--device", "tpu"], "--device tpu: one of auto, cpu, cuda, cuda:N"),
        (["p.py", "c.py", "--isolation", "weak"], "--isolation weak: one of auto, namespaces"),
        (["p.py", "c.py", "--compile", "x"], "--compile x: one of ttir, binary"),
        (["p.py", "c.py", "--baseline", "x"], "--baseline x: one of eager, compile"),
        (["p.py", "c.py", "--precision", "fp8"], "--precision fp8: one of fp32, fp16, bf16"),
        (["p.py", "c.py", "--timeout", "0"], "--timeout 0: seconds above 0, at most 86400"),
        (["p.py", "c.py", "--url", "http://x:1", "--timeout", "2"], "--timeout must be set where"),
        (["p.py", "c.py", "--override", "dim=1"], "--override dim: p.py has no such module const"),
        (["p.py", "c.py", "--override", "rows"], "--override rows: a name and a value"),
        (["p.py", "c.py", "--override", "q:rows=1"], "--override q: no single problem of this"),
        (["p.py", "c.py", "--override", "p:dim=1"], "p: p.py has no module constant dim; there"),
        (["p.py", "c.py", "--override", "@no.toml"], "no.toml: cannot be read: No such file"),
        (["p.py", "c.py", "--override", "@c.py"], "--override @c.py: "),
        (["p.py", "c.py", "--override", "@list.toml"], "@list.toml: overrides.p.rows: found ["),
        (["p.py", "c.py", "--url", "nonsense"], "nonsense"),
        (["p.py", "c.py", "--url", "http://x:1", "--workers", "2"], "--workers must be set where"),
        (["p.py", "c.py", "--override", "rows=1e999"], "rows=1e999: found inf; a number"),
        (["--serve", "--socket", "s", "--shape", "n=1"], "--shape: not allowed with --serve"),
        (["p.py", "a" * 5000], "aaa: file name too long"),
        (["p.py", ""], "CANDIDATE is empty"),
        (["p.py", "\x1b[2J.py"], "\u241b[2J.py: no such file"),
        (["--serve", "--socket", "/proc/x.sock"], "--socket /proc/x.sock: "),
        (["p.py"], "no CANDIDATE"),
        ([], "no PROBLEM and CANDIDATE"),
        (["p.py", "c.py", "--serve", "--socket", "s"], "--serve takes no CANDIDATE"),
        (["p.py", "c.py", "--socket", "s"], "--socket and --listen are addresses of --serve; --u"),
        (["--serve"], "a server needs either --socket PATH or --listen HOST:PORT"),
        (["--serve", "--socket", "s", "--json"], "--json: not allowed with --serve"),
        (["--serve", "--socket", "s", "--override", "n=1"], "--override: not allowed with --serve"),
        (["empty", "-"], "empty: a directory"),
        (["p.py", "two", "--explain"], "--explain: two is a directory; name one file"),
        (["two", "c.py"], "c.py: two has no single problem of this name or number"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_what_cannot_be_judged_exits_2_in_one_line(
    folder, argv, expected, capsys,
    monkeypatch,
):  # fmt: skip
    (folder / "c.py").write_text(KERNEL)
    (folder / "binary.py").write_bytes(b"x=\xff\x00")
    (folder / "none.py").write_text("class Model: pass\n")
    (folder / "list.toml").write_text("[p]\nrows = [1]\n")
    (folder / "empty").mkdir()
    (folder / "two").mkdir()
    (folder / "two" / "1.py").write_text(PROBLEM)
    (folder / "bytes").write_bytes(b"\xff")
    monkeypatch.chdir(folder)
    with (folder / "bytes").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert cli.run_command(["judge", *argv]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.count("\n") == 1


def test_a_missing_device_is_a_machine_error(folder, monkeypatch, capsys):
    monkeypatch.setattr("forge.process.devices.inventory", tuple)
    (folder / "c.py").write_text(KERNEL)
    monkeypatch.chdir(folder)
    assert cli.run_command(["judge", "p.py", "c.py", "--device", "cuda:1"]) == 3
    assert "this machine has no GPU; --device cpu needs none" in capsys.readouterr().err
