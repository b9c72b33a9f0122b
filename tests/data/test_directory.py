"""Problems from files: layout, sizes by overrides and shapes, and one line per mistake."""

from pathlib import Path
from typing import Any

import pytest

from forge.config.schema import ProblemsTable
from forge.data.problem_files import override, parse_file
from forge.data.problems import from_source, in_split, load_problems
from forge.data.sources.splitting import digest_of, num_shared
from forge.errors import ConfigError
from forge.records import Problem, Split
from tests.prompting import PROMPTS

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

SIDES = (Split.HELDOUT, Split.GRPO)


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


def test_files_are_found_recursively_with_id_level_and_family_from_their_path(folder: Path) -> None:
    (folder / "4_out.py").write_text(SOURCE, encoding="utf-8")
    outside, first, second = _load(folder)
    assert (outside.problem_id, outside.level) == ("4_out", 1)
    assert (first.problem_id, first.level, first.family) == ("level1/1_Relu", 1, "level1")
    assert (second.problem_id, second.level, second.family) == ("level2/sub/3_Conv", 2, "sub")


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


def test_files_serve_both_grpo_and_evaluation_by_choice_alone(folder: Path) -> None:
    problems = _load(folder, num_heldout="shared")
    assert in_split(problems, Split.GRPO) == in_split(problems, Split.HELDOUT) == problems
    assert num_shared(problems, problems) == 2
    for keys in ({"num_heldout": 5}, {}):  # one problem twice
        problems = _load(folder, **keys)
        assert {problem.split for problem in problems} == {Split.HELDOUT}
        assert num_shared(problems, problems) == 0


@pytest.mark.parametrize(("num_files", "num_heldout"), [(2, 1), (9, 1), (100, 20), (340, 64)])
def test_a_fifth_of_the_files_is_held_out_by_default(
    tmp_path: Path, num_files: int, num_heldout: int
) -> None:
    for number in range(num_files):
        text = SOURCE.replace("x * scale", f"x * scale + {number}")
        (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
    (tmp_path / "copy.py").write_text(SOURCE.replace("x * scale", "x * scale + 0"))
    problems = _load(tmp_path)
    heldout = in_split(problems, Split.HELDOUT)
    assert num_heldout <= len(heldout) <= num_heldout + 1
    sides = [{digest_of(each) for each in in_split(problems, part)} for part in SIDES]
    assert all(sides)
    assert not sides[0] & sides[1], "a copy under another name is the same problem"


def test_copies_of_a_module_by_assignment_are_one_problem(tmp_path: Path) -> None:
    head, _, tail = SOURCE.partition("class Model")
    text = f"{head}Model = torch.nn.ReLU{tail[tail.index('def get_inputs') - 2 :]}"
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    assert {each.split for each in _load(tmp_path)} == {Split.HELDOUT}


def test_a_bare_function_becomes_a_problem() -> None:
    problem = from_source("def f(x, y, scale=2.0):\n    return x + y * scale\n", name="stdin")
    assert "def forward(self, x, y):\n        return f(x, y)" in problem.source
    assert "return [torch.randn(4, 64), torch.randn(4, 64)]" in problem.source


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


SIZED = """N = 1
M = 2
class Model: pass
def get_inputs(): pass
def get_init_inputs(): return [M]
"""
SETS = "def get_input_sets():\n    return [dict(n=1)]\n"


@pytest.fixture
def sized(tmp_path: Path) -> Path:
    (tmp_path / "1_both.py").write_text(SIZED)
    (tmp_path / "2_n.py").write_text(SIZED.replace("M = 2\n", ""))
    (tmp_path / "3_none.py").write_text(SIZED.replace("N = 1\nM = 2\n", ""))
    return tmp_path


def shaped(folder: Path, shapes: list[dict[str, Any]], **keys: object) -> dict[str, Problem]:
    return {each.problem_id: each for each in _load(folder, shapes=shapes, **keys)}


def names(problem: Problem) -> list[str]:
    return [shape.name for shape in problem.shapes]


def test_a_shape_counts_for_the_files_that_have_one_of_its_constants(sized: Path) -> None:
    found = shaped(sized, [{"N": 8}, {"M": 5}, {"N": 8, "M": 6}])
    assert names(found["1_both"]) == ["N=8", "M=5", "N=8, M=6"]
    assert names(found["2_n"]) == ["N=8"]
    assert names(found["3_none"]) == []


def test_each_shape_has_its_sizes_after_overrides_and_the_problem_has_the_first(
    sized: Path,
) -> None:
    problem = shaped(sized, [{"N": 8}, {"M": 5}], overrides={"M": 7})["1_both"]
    first, second = problem.shapes
    assert first.source.startswith("N = 8\nM = 7\n")
    assert second.source.startswith("N = 1\nM = 5\n")
    assert problem.source.startswith(first.source.rstrip())


def test_a_table_of_one_problem_gives_it_sizes_of_its_own(sized: Path) -> None:
    found = shaped(sized, [{"N": 8, "1": {"N": 9}}, {"1_both": {"M": 3}}])
    assert names(found["1_both"]) == ["N=9", "M=3"]
    assert names(found["2_n"]) == ["N=8"]


def test_shapes_of_other_problems_do_not_add_the_files_own_sizes(sized: Path) -> None:
    found = shaped(sized, [{"1": {"N": 8}}, {"1": {"N": 9}}, {"2": {"N": 7}}])
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
    sized: Path, shape: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        shaped(sized, [{"N": 2}, shape])


def test_the_prompt_lists_the_shapes_and_says_how_they_are_judged(sized: Path) -> None:
    found = shaped(sized, [{"N": 8}, {"N": 64, "M": 3}])
    prompt = PROMPTS.first_messages(found["1_both"])[1].content
    assert prompt.endswith(
        "# Judged on 2 shapes. A kernel has to be correct at each; its speed-up is their geometric "
        "mean.\n#   N=8\n#   N=64, M=3"
    )
    compile(prompt, "p.py", "exec")
    assert "Judged" not in PROMPTS.first_messages(found["3_none"])[1].content


def test_the_prompt_of_a_file_with_input_sets_says_so(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(SIZED + SETS)
    (problem,) = shaped(tmp_path, [{"N": 3}]).values()
    assert problem.source.count("# Judged on each set of get_input_sets().") == 1
    assert "Judged on each set" in from_source(SIZED + SETS).source
    (both,) = shaped(tmp_path, [{"N": 3}, {"N": 4}]).values()
    assert both.source.endswith("#   N=4\n# At each, every set of get_input_sets() is judged.\n")


def test_input_sets_may_replace_get_inputs(tmp_path: Path) -> None:
    source = SIZED.replace("def get_inputs(): pass\n", SETS)
    (tmp_path / "p.py").write_text(source)
    assert shaped(tmp_path, [{"N": 3}])
    assert from_source(source).source.startswith(source)


def test_a_problems_own_values_come_before_those_for_all(tmp_path: Path) -> None:
    for name in ("level1/3_a", "level2/3_b", "level2/4_c"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SIZED)
    own = {"N": 8, "4": {"N": 4, "M": 2}, "level1/3": {"M": 1}}
    heads = [each.source.splitlines()[:2] for each in _load(tmp_path, overrides=own)]
    assert heads == [["N = 8", "M = 1"], ["N = 8", "M = 2"], ["N = 4", "M = 2"]]
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, overrides={"Nn": 8, "3": {"N": 1}, "4": {"K": 1}, "5": {"N": 1}})
    lines = str(caught.value).splitlines()
    keys = [line.split(": ")[0].removeprefix("problems.overrides.") for line in lines]
    assert keys == ["Nn", "3", "4", "5"]
    assert "did you mean N?" in lines[0]
    assert "level2/4_c.py has no module constant K; there are M, N" in lines[2]
