"""Problems from files: layout, overrides, and one line per mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.config.schema import ProblemsTable
from forge.data.problem_files import find_files, level_of, override, parse_file
from forge.data.problems import from_source, in_split, load_problems
from forge.errors import ConfigError
from forge.records import Problem, Split

SOURCE = '''"""é: offsets are bytes."""
import torch

batch_size, dim = 128, 4
é = "é"; rows = 4096  # é
scale: float = (
    1.5
)


class Model(torch.nn.Module):
    def forward(self, x):
        rows = 1
        return x * scale


def get_inputs():
    return [torch.randn(rows, 4)]


def get_init_inputs():
    return []
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("level1/1_Relu.py", "level2/sub/3_Conv.py", "level1/_notes.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE, encoding="utf-8")
    return tmp_path


def _load(path: Path, **keys: object) -> list[Problem]:
    table = ProblemsTable.model_validate({"source": "dir", "path": path, **keys})
    return load_problems(table, seed=0)


def test_files_are_found_recursively_with_id_level_and_family_from_their_path(
    folder: Path,
) -> None:
    first, second = _load(folder)
    assert (first.problem_id, first.level, first.family) == ("level1/1_Relu", 1, "level1")
    assert (second.problem_id, second.level, second.family) == ("level2/sub/3_Conv", 2, "sub")


def test_include_chooses_files_by_pattern(folder: Path) -> None:
    assert [path.name for path in find_files(folder, include=["level2/**/*.py"])] == ["3_Conv.py"]


def test_only_the_overridden_constant_changes(folder: Path) -> None:
    file = parse_file(folder / "level1/1_Relu.py")
    overrides = {"rows": 16, "scale": 0.5, "batch_size": 2, "dim": 64, "absent": 1}
    changed = override(file, overrides)
    expected = SOURCE.replace("128, 4", "2, 64").replace("rows = 4096", "rows = 16")
    assert changed.replace("0.5", "1.5") == expected


def test_lines_are_split_as_the_parser_does(folder: Path) -> None:
    path = folder / "level1" / "feed.py"
    path.write_text('"""a\f\u2028b"""\n' + SOURCE, encoding="utf-8")
    assert "rows = 16  # é\n" in override(parse_file(path), {"rows": 16})


def test_constants_that_share_a_value_must_be_overridden_alike(folder: Path) -> None:
    path = folder / "level1" / "shared.py"
    path.write_text("a = b = 4\n" + SOURCE, encoding="utf-8")
    file = parse_file(path)
    assert override(file, {"a": 16, "b": 16}).startswith("a = b = 16\n")
    assert override(file, {"b": 16}).startswith("a = b = 16\n")
    with pytest.raises(ConfigError, match=r"shared.py:1: b shares its value with another"):
        override(file, {"a": 16, "b": 8})


def test_only_constants_of_the_module_are_overridden(folder: Path) -> None:
    file = parse_file(folder / "level1/1_Relu.py")
    assert "        rows = 1\n" in override(file, {"rows": 16})


def test_an_override_of_an_unknown_constant_is_refused_with_a_suggestion(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"problems.overrides.row: .*did you mean rows\?"):
        _load(folder, overrides={"row": 3})


@pytest.mark.parametrize("name", ["Model", "get_inputs", "get_init_inputs"])
def test_the_error_names_the_file_and_the_names_that_it_lacks(folder: Path, name: str) -> None:
    (folder / "broken.py").write_text(SOURCE.replace(name, "other"), encoding="utf-8")
    expected = (
        rf"broken.py: no {name}; a problem file defines Model, get_inputs and get_init_inputs"
    )
    with pytest.raises(ConfigError, match=expected):
        _load(folder)


def test_all_mistakes_are_reported_at_once(folder: Path) -> None:
    (folder / "a.py").write_text("def f(:\n")
    (folder / "b.py").write_text("x = 1\n")
    with pytest.raises(ConfigError) as caught:
        _load(folder, overrides={"nothing_like_it": 1})
    lines = str(caught.value).splitlines()
    assert "a.py:1: no Python" in lines[0]
    assert "b.py: no Model and no get_inputs and no get_init_inputs" in lines[1]
    assert lines[2].startswith("problems.overrides.nothing_like_it:")


def test_a_missing_or_empty_directory_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        _load(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"no file matches \*\.py"):
        _load(tmp_path)


def test_few_files_serve_both_grpo_and_evaluation(folder: Path) -> None:
    problems = _load(folder, num_heldout=5)
    assert in_split(problems, Split.GRPO) == in_split(problems, Split.HELDOUT) == problems


def test_enough_files_are_divided(folder: Path) -> None:
    path = folder / "level2" / "sub" / "3_Conv.py"
    path.write_text(SOURCE.replace("return x * scale", "return x + scale"), encoding="utf-8")
    problems = _load(folder, num_heldout=1)
    assert [len(in_split(problems, s)) for s in (Split.GRPO, Split.HELDOUT)] == [1, 1]


def test_a_file_outside_a_level_folder_is_level_1(tmp_path: Path) -> None:
    assert level_of(tmp_path / "level3" / "x" / "a.py") == 3
    assert level_of(tmp_path / "a.py") == 1


def test_a_bare_function_becomes_a_problem() -> None:
    problem = from_source("def f(x, y, scale=2.0):\n    return x + y * scale\n", name="stdin")
    assert "def forward(self, x, y):\n        return f(x, y)" in problem.source
    assert "return [torch.randn(4, 64), torch.randn(4, 64)]" in problem.source


def test_a_whole_problem_from_text_is_unchanged() -> None:
    assert from_source(SOURCE).source == SOURCE


def test_two_texts_with_one_name_are_two_problems() -> None:
    """A run stores problems by id: the second must not replace the first."""
    ids = {from_source(f"def f(x):\n    return x + {n}\n").problem_id for n in (1, 2)}
    assert len(ids) == 2
    assert all(name.startswith("chat/stdin-") for name in ids)


@pytest.mark.parametrize(
    ("source", "words"),
    [("def f(:", "no Python"), ("x = 1", "0 functions"), ("def f():\n    pass", "no tensor")],
)
def test_a_text_that_is_neither_is_refused(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_source(source)
