"""The user's reward function inside its process: loaded, called, its result checked."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from forge.records import Reason, Status, Verdict
from forge.rollout.rewards.function import MODULE, Fault, RewardFunction, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRONG = Verdict(status=Status.WRONG, reason=Reason.OK, detail="")


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], RewardFunction]:
    """Loads `score` from a text; what it leaves in this process is removed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, MODULE, ModuleType(MODULE))

    def make(text: str) -> RewardFunction:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return load(path, "score")

    return make


def test_terms_are_floats_by_name(loaded):
    function = loaded("def score(verdict):\n    return {'half': 1, 'flag': verdict.is_correct}\n")
    assert function.score(WRONG) == {"half": 1.0, "flag": 0.0}
    assert function.line == 1


def test_a_function_may_import_its_neighbours(loaded, tmp_path):
    (tmp_path / "weights_of_mine.py").write_text("HALF = 0.5\n")
    function = loaded(
        "from weights_of_mine import HALF\ndef score(verdict):\n    return {'a': HALF}\n"
    )
    assert function.score(WRONG) == {"a": 0.5}


def test_a_neighbour_shadows_no_module(loaded, tmp_path):
    (tmp_path / "statistics.py").write_text("raise SystemExit\n")
    sys.modules.pop("statistics", None)
    function = loaded(
        "import statistics\ndef score(verdict):\n    return {'a': statistics.mean([1])}\n"
    )
    assert function.score(WRONG) == {"a": 1.0}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("def score(verdict:\n    pass\n", 1, "SyntaxError"),
        ("\nimport no_such_module\n", 2, "ModuleNotFoundError"),
        ("\n\nraise SystemExit(3)\n", 3, "SystemExit"),
        ("def other(verdict):\n    return {}\n", 1, 'defines no "score"'),
        ("score = 3\n", 1, "int; a function"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_a_fault_with_its_line(loaded, text, line, words):
    with pytest.raises(Fault) as caught:
        loaded(text)
    assert caught.value.line == line
    assert words in caught.value.text


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("return {'a': float('nan')}", 1, 'nan as "a"; a finite number'),
        ("return {'a': -float('inf')}", 1, 'inf as "a"; a finite number'),
        ("return {'a': 10 ** 400}", 1, 'no float as "a"'),
        ("return {'a': 1e308, 'b': 1e308}", 1, "sum is not finite"),
        ("return {'a': 'much'}", 1, 'str as "a"; a number'),
        ("return {'a': 1j}", 1, 'complex as "a"; a number'),
        ("return {3: 1.0}", 1, "a term named 3"),
        ("return {'a b': 1.0}", 1, "a term named 'a b'"),
        ("return {f't{i}': 0 for i in range(65)}", 1, "65 terms; at most 64"),
        ("return 1.0", 1, "float; a dict"),
        ("return None", 1, "None; a dict"),
        ("return [verdict]", 1, "list; a dict"),
        ("x = 1\n    return {'a': 1 / 0}", 3, "score raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(7)", 2, "score raised SystemExit: 7"),
        ("raise KeyboardInterrupt", 2, "score raised KeyboardInterrupt: (no message)"),
        ("return score(verdict)", 2, "score raised RecursionError"),
    ],
)
def test_a_result_that_is_no_terms_is_a_fault_with_its_line(loaded, body, line, words):
    function = loaded(f"def score(verdict):\n    {body}\n")
    with pytest.raises(Fault) as caught:
        function.score(WRONG)
    assert words in caught.value.text
    assert caught.value.line == line
    assert "\n" not in caught.value.text


def test_a_message_that_cannot_be_made_is_left_out(loaded):
    function = loaded(
        "class Bad(Exception):\n    def __str__(self): raise ValueError\n"
        "def score(verdict):\n    raise Bad\n"
    )
    with pytest.raises(Fault, match=r"raised Bad: \(no message\)"):
        function.score(WRONG)


def test_a_group_is_scored_as_a_whole(loaded):
    function = loaded(
        "def score(rollouts):\n"
        "    num = sum(map(len, rollouts))\n"
        "    return [[{'share': 1 / num} for _ in row] for row in rollouts]\n"
    )
    assert function.score_group([[WRONG, WRONG], [], [WRONG, WRONG]]) == [
        [{"share": 0.25}] * 2, [], [{"share": 0.25}] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return [[{}]]", "1 entries; one for each rollout, 2 here"),
        ("return [[{}, {}], []]", "0 entries for rollout 1; one for each turn, 1 here"),
        ("return [{}, {}]", "dict for rollout 0; a list with one entry for each turn"),
        ("return {}", "dict; a list with one entry for each rollout"),
        ("return [[{}, {'a': float('nan')}], [{}]]", 'nan as "a" for rollout 0, turn 1'),
    ],
)
def test_terms_of_another_form_than_the_group_are_a_fault(loaded, body, words):
    function = loaded(f"def score(rollouts):\n    {body}\n")
    with pytest.raises(Fault) as caught:
        function.score_group([[WRONG, WRONG], [WRONG]])
    assert words in caught.value.text


def test_a_function_that_changes_its_argument_changes_nothing(loaded):
    function = loaded("def score(rollouts):\n    return [[{}] * len(rollouts.pop())]\n")
    given = [[WRONG]]
    function.score_group(given)
    assert given == [[WRONG]]
