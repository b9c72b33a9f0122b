"""Problems and answers as users give them: which text is code, which string is a path."""

import logging
from pathlib import Path

import pytest

from forge.adapters.subjects import find_code, known_problems, read_answer, read_problem
from forge.config.schema import ConstantsTable
from forge.data.problem_files import Overrides
from forge.errors import ConfigError
from forge.records import Reason
from tests.adapters.kernels import ANSWER, PROBLEM, RIGHT

FENCED = f"```python\n{RIGHT}```\n"
CODE = {
    "code": (RIGHT, RIGHT),
    "whole answer": (ANSWER, RIGHT),
    "fence": (FENCED, RIGHT),
    "code with a fence in a comment": (f'"""\n```\nx\n```\n"""\n{RIGHT}', None),
    "code with an answer in a string": (f"""{RIGHT}\nEXAMPLE = '''\n{ANSWER}\n'''\n""", None),
    "code with its name alone": ("import torch\nModelNew = torch.nn.ReLU\n", None),
    "code with a mistake": ("class ModelNew(:\n", None),
    "code without the entry point": ("class Other: ...\n", None),
}
NO_CODE = {
    "prose": ("Sorry, no.", Reason.NO_CODE_BLOCK),
    "nothing": ("", Reason.NO_CODE_BLOCK),
    "half a block": (FENCED[:-4], Reason.NO_CODE_BLOCK),
    "thinking without end": (f"<think>\n{FENCED}", Reason.UNCLOSED_THINKING),
    "CUDA": ("Kernel: ```cuda\n__global__ void f() {}\n```", Reason.CUDA_SOURCE),
    "CUDA without a fence": ("__global__ void f() {}", Reason.CUDA_SOURCE),
    "another class": ("```python\nclass Other: ...\n```\n", Reason.NO_ENTRY_POINT),
    "bare code behind thinking": (f"<think>\nx\n</think>\n{RIGHT}", Reason.NO_CODE_BLOCK),
}


@pytest.mark.parametrize("name", CODE)
def test_the_code_of_an_answer_is_found(name):
    answer, code = CODE[name]
    assert find_code(answer, entry_point="Model").code == (answer if code is None else code)


@pytest.mark.parametrize("name", NO_CODE)
def test_an_answer_without_code_has_the_reason_of_the_training_loop(name):
    answer, reason = NO_CODE[name]
    assert find_code(answer, entry_point="Model").reason is reason


def test_a_string_is_never_read_as_a_file(tmp_path, monkeypatch, caplog):
    """A model could name a file with a correct kernel."""
    monkeypatch.chdir(tmp_path)
    Path("best.py").write_text(RIGHT)
    with caplog.at_level(logging.WARNING):
        assert read_answer("best.py") == "best.py"
    assert "Path('best.py') reads a file" in caplog.text
    assert read_answer(Path("best.py")) == RIGHT


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    for name in ("level1/19_ReLU.py", "level2/19_Conv.py"):
        path = tmp_path / "bench" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"# {name}\n{PROBLEM}")
    return tmp_path / "bench"


def test_a_problem_is_a_path_a_source_or_a_name(bench):
    path = bench / "level1" / "19_ReLU.py"
    assert read_problem(path).source == read_problem(str(path)).source == path.read_text()
    assert read_problem(PROBLEM).source == PROBLEM
    assert "class Model(" in read_problem("def f(x): return torch.relu(x)").source
    known = known_problems(bench)
    assert read_problem("level=2 problem_id=19", known=known).problem_id == "level2/19_Conv"
    assert read_problem("level1/19_ReLU", known=known).source == path.read_text()
    assert read_problem(PROBLEM, known=known).source == PROBLEM
    problem = read_problem(PROBLEM)
    assert read_problem(problem) is problem


def test_a_problem_that_is_none_is_one_clear_line(bench):
    known = known_problems(bench)
    for problem, message in {
        "nowhere.py": "problem: nowhere.py: no such file; a path, the source of a problem",
        "": "problem: found an empty text",
        "x" * 5000: "no such file",
        "#\n" * (1 << 20): "characters; 1048576 are allowed",
        "a\0b": "no such file",
        str(bench): "has several problems; pass it as problems=",
        "def f(:\n": r"problem\.py:1: no Python",
        "x = 1\n": "0 functions and no problem",
    }.items():
        with pytest.raises(ConfigError, match=message) as caught:
            read_problem(problem)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match=r"19: .* has no single problem of this name or number"):
        read_problem("19", known=known)


def test_constants_of_a_problem_are_overridden_wherever_it_comes_from(bench):
    source, path = f"N = 2\nM = 3\n{PROBLEM}", bench / "level1" / "19_ReLU.py"
    path.write_text(source)
    known = known_problems(bench)
    table: ConstantsTable = {"N": 5, "level2/19_Conv": {}, "19_ReLU": {"M": 7}}
    wanted = source.replace("N = 2", "N = 5").replace("M = 3", "M = 7")
    both = Overrides.from_table(table)
    assert read_problem("level1/19_ReLU", known=known, overrides=both).source == wanted
    everywhere = Overrides(everywhere={"N": 5, "M": 7})
    for problem in (path, source):
        assert read_problem(problem, overrides=everywhere).source == wanted
        with pytest.raises(ConfigError, match=r"overrides\.K: .* no such module constant"):
            read_problem(problem, overrides=Overrides(everywhere={"K": 1}))
    with pytest.raises(ConfigError, match="read before keeps its constants"):
        read_problem(read_problem(PROBLEM), overrides=everywhere)
