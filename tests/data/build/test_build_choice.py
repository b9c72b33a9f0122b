"""The steps over all rows: signatures, duplicates, contamination, split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.config.schema.build import DuplicatesTable, SplitTable
from forge.data.build.choice import Choice, HeldoutProblems
from forge.data.build.near import PERMUTATIONS, Families, SignatureIndex, signature, similarity
from forge.data.build.steps import Prepared, RowSteps, Step, parse
from forge.errors import ConfigError
from tests.data.build.samples import MODULE, build_of, likeness, make_rows, trinity_row, write_jsonl
from tests.examples import examples
from tests.prompting import PROMPTS

RELU = MODULE.format(name="Model", op="relu", number=1)


@pytest.mark.parametrize(
    "changed",
    [
        RELU.replace("x", "value"),
        RELU.replace("Model", "Renamed"),
        RELU.replace("+ 1", "+ 77"),
        RELU.replace('"""Adds 1."""', '"""Another text."""').replace("torch\n", "torch  # note\n"),
    ],
)  # fmt: skip
def test_names_numbers_and_comments_do_not_count(changed: str) -> None:
    assert changed != RELU
    assert likeness(RELU, changed) == 1.0


def test_modules_of_one_form_with_other_operations_are_not_similar() -> None:
    ops = ("relu", "sigmoid", "exp", "sin")
    modules = [MODULE.format(name="Model", op=op, number=1) for op in ops]
    found = {likeness(one, two) for one in modules for two in modules if one != two}
    assert max(found) < 0.8


def test_text_that_is_no_python_is_compared_by_its_words() -> None:
    text = " ".join(f"word{n}" for n in range(400))
    assert likeness(f"{text} (", f"{text} ( end") > 0.9
    assert likeness(f"{text} (", "something else (") < 0.2


@given(shared=st.integers(0, 300), own=st.integers(5, 300))
@settings(max_examples=examples(20), deadline=None)
def test_similarity_estimates_the_share_of_common_pieces(shared: int, own: int) -> None:
    def text(start: int) -> str:
        common = [f"a{n}" for n in range(shared)]
        return " ".join(["(", *common, *(f"b{n}" for n in range(start, start + own))])

    one, other = text(0), text(1000)
    pieces = [
        {tuple(t.split()[i : i + 5]) for i in range(len(t.split()) - 4)} for t in (one, other)
    ]
    union = len(pieces[0] | pieces[1])
    exact = len(pieces[0] & pieces[1]) / union if union else 1.0
    assert abs(likeness(one, other) - exact) < 0.2


def test_an_index_finds_what_a_comparison_of_all_pairs_finds() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 1 << 32, (20, PERMUTATIONS), dtype=np.uint32)
    all_signatures = []
    for row in base:
        for changed in (0, 10, 60):
            other = row.copy()
            places = rng.choice(PERMUTATIONS, changed, replace=False)
            other[places] = rng.integers(0, 1 << 32, changed, dtype=np.uint32)
            all_signatures.append(other)
    index = SignatureIndex(0.85)
    for number, each in enumerate(all_signatures):
        assert index.add(each) == number
    for number, each in enumerate(all_signatures):
        shares = similarity(each, np.stack(all_signatures))
        assert [i for i, _ in index.similar(each)] == list(np.flatnonzero(shares >= 0.85))
        assert index.add(each) == number


@given(pairs=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_families_are_the_connected_components(pairs: list[tuple[int, int]]) -> None:
    families = Families()
    groups = {n: {n} for n in range(13)}
    for one, other in pairs:
        families.join(one, other)
        joined = groups[one] | groups[other]
        groups.update(dict.fromkeys(joined, joined))
    assert {n: families.of(n) for n in groups} == {n: min(group) for n, group in groups.items()}


def choice_of(rows: list[dict[str, Any]]) -> Choice:
    """The choice among rows."""
    steps, choice = RowSteps(build=build_of(), prompts=PROMPTS, chat=None), Choice()
    for number, row in enumerate(rows):
        found = steps(row, number=number + 1, origin=str(number))
        assert isinstance(found, Prepared), found
        choice.add(found)
    return choice


def reasons(choice: Choice) -> list[tuple[str, str]]:
    return [(each.origin, each.step) for each in choice.dropped]


def test_the_first_of_equal_rows_stays() -> None:
    rows = [trinity_row(), trinity_row("exp"), trinity_row(sample_key="another")]
    choice = choice_of(rows)
    assert choice.kept == [0, 1]
    assert reasons(choice) == [("2", Step.EXACT)]
    assert choice.dropped[0].detail == "0"


def test_a_similar_module_with_a_similar_answer_is_left_out() -> None:
    renamed = trinity_row(name="Renamed", number=5)
    other_answer = trinity_row(name="Third", number=3)
    other_answer["triton_code"] = trinity_row("sigmoid")["triton_code"].replace(
        "value + 1", "value / 7 - tl.exp(value) * tl.where(value > 0, value, tl.cos(value))"
    ).replace("tl.sigmoid", "tl.erf")  # fmt: skip
    choice = choice_of([trinity_row(), renamed, other_answer, trinity_row("exp")])
    choice.drop_near_and_split(DuplicatesTable(similarity=0.95), SplitTable())
    assert reasons(choice) == [("1", Step.NEAR)]
    assert choice.kept == [0, 2, 3]


def test_near_duplicates_stay_if_asked() -> None:
    choice = choice_of([trinity_row(), trinity_row(name="Renamed")])
    choice.drop_near_and_split(DuplicatesTable(near=False), SplitTable())
    assert choice.kept == [0, 1]


def test_a_planted_copy_of_a_heldout_problem_is_left_out(tmp_path: Path) -> None:
    problems = tmp_path / "level1"
    problems.mkdir()
    (problems / "19_ReLU.py").write_text(MODULE.format(name="Model", op="relu", number=4))
    rows = [trinity_row("exp"), trinity_row(name="Hidden", number=9)]
    choice = choice_of(rows)
    choice.drop_contaminated(HeldoutProblems([str(problems)], threshold=0.8))
    assert choice.kept == [0]
    assert choice.dropped[0].detail == "19_ReLU.py (1.00)"


def test_heldout_problems_may_be_rows_and_must_have_code(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"code": RELU, "level": 1}])
    assert HeldoutProblems([str(rows)], threshold=0.8).match(signature(RELU, parse(RELU)))
    write_jsonl(tmp_path / "rows.jsonl", [{"level": 1}])
    with pytest.raises(ConfigError, match=r"row 1: found columns level; one of code, python_code"):
        HeldoutProblems([str(rows)], threshold=0.8)
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="no problem in it"):
        HeldoutProblems([str(tmp_path / "none")], threshold=0.8)


def test_a_split_keeps_similar_modules_together_and_follows_its_seed() -> None:
    rows = make_rows(30)
    copies = [row | {"sample_key": f"copy-{n}"} for n, row in enumerate(rows)]
    for n, copy in enumerate(copies):
        copy["triton_code"] = copy["triton_code"].replace("BLOCK=16", f"BLOCK={n + 32}")
    chosen: dict[int, frozenset[int]] = {}
    for seed in (0, 1):
        choice = choice_of([*rows, *copies])
        split = SplitTable(heldout_share=0.3, seed=seed)
        choice.drop_near_and_split(DuplicatesTable(near=False), split)
        assert all((number + 30) % 60 in choice.heldout for number in choice.heldout)
        assert 0 < len(choice.heldout) <= 18
        chosen[seed] = choice.heldout
    assert chosen[0] != chosen[1]
