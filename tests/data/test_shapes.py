"""Shapes of problem files: which count for a file, their names, and the prompt that lists them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.problems import from_source, load_problems
from forge.errors import ConfigError
from tests.prompting import PROMPTS

if TYPE_CHECKING:
    from forge.records import Problem

SOURCE = """N = 1
M = 2
class Model: pass
def get_inputs(): pass
def get_init_inputs(): return [M]
"""
SETS = "def get_input_sets():\n    return [dict(n=1)]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "1_both.py").write_text(SOURCE)
    (tmp_path / "2_n.py").write_text(SOURCE.replace("M = 2\n", ""))
    (tmp_path / "3_none.py").write_text(SOURCE.replace("N = 1\nM = 2\n", ""))
    return tmp_path


def load(folder: Path, shapes: list[dict[str, Any]], **keys: object) -> dict[str, Problem]:
    table = ProblemsTable.model_validate(
        {"source": "dir", "path": folder, "shapes": shapes, **keys}
    )
    return {each.problem_id: each for each in load_problems(table, seed=0)}


def names(problem: Problem) -> list[str]:
    return [shape.name for shape in problem.shapes]


def test_a_shape_counts_for_the_files_that_have_one_of_its_constants(folder: Path) -> None:
    found = load(folder, [{"N": 8}, {"M": 5}, {"N": 8, "M": 6}])
    assert names(found["1_both"]) == ["N=8", "M=5", "N=8, M=6"]
    assert names(found["2_n"]) == ["N=8"]
    assert names(found["3_none"]) == []


def test_each_shape_has_its_sizes_after_overrides_and_the_problem_has_the_first(
    folder: Path,
) -> None:
    problem = load(folder, [{"N": 8}, {"M": 5}], overrides={"M": 7})["1_both"]
    first, second = problem.shapes
    assert first.source.startswith("N = 8\nM = 7\n")
    assert second.source.startswith("N = 1\nM = 5\n")
    assert problem.source.startswith(first.source.rstrip())


def test_a_table_of_one_problem_gives_it_sizes_of_its_own(folder: Path) -> None:
    found = load(folder, [{"N": 8, "1": {"N": 9}}, {"1_both": {"M": 3}}])
    assert names(found["1_both"]) == ["N=9", "M=3"]
    assert names(found["2_n"]) == ["N=8"]


def test_shapes_of_other_problems_do_not_add_the_files_own_sizes(folder: Path) -> None:
    found = load(folder, [{"1": {"N": 8}}, {"1": {"N": 9}}, {"2": {"N": 7}}])
    assert names(found["1_both"]) == ["N=8", "N=9"]
    assert names(found["2_n"]) == ["N=7"]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"Nn": 1}, r"problems\.shapes\.1\.Nn: no file has this module constant; did you mean N\?"),
        ({"9": {"N": 1}}, r"problems\.shapes\.1\.9: no single problem of this name or number"),
        ({"1": {"K": 1}}, r"problems\.shapes\.1\.1: 1_both\.py has no module constant K"),
    ],
)
def test_an_unknown_name_is_refused_with_the_number_of_its_shape(
    folder: Path, shape: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        load(folder, [{"N": 2}, shape])


def test_the_prompt_lists_the_shapes_and_says_how_they_are_judged(folder: Path) -> None:
    found = load(folder, [{"N": 8}, {"N": 64, "M": 3}])
    prompt = PROMPTS.first_messages(found["1_both"])[1].content
    assert prompt.endswith(
        "# Judged on 2 shapes. A kernel has to be correct at each; its speed-up is their geometric "
        "mean.\n#   N=8\n#   N=64, M=3"
    )
    compile(prompt, "p.py", "exec")
    assert "Judged" not in PROMPTS.first_messages(found["3_none"])[1].content


def test_the_prompt_of_a_file_with_input_sets_says_so(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(SOURCE + SETS)
    (problem,) = load(tmp_path, [{"N": 3}]).values()
    assert problem.source.count("# Judged on each set of get_input_sets().") == 1
    assert "Judged on each set" in from_source(SOURCE + SETS).source
    (both,) = load(tmp_path, [{"N": 3}, {"N": 4}]).values()
    assert both.source.endswith("#   N=4\n# At each, every set of get_input_sets() is judged.\n")


def test_input_sets_may_replace_get_inputs(tmp_path: Path) -> None:
    source = SOURCE.replace("def get_inputs(): pass\n", SETS)
    (tmp_path / "p.py").write_text(source)
    assert load(tmp_path, [{"N": 3}])
    assert from_source(source).source.startswith(source)
