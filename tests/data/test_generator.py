"""The generator: number of problems, splits, and equality between runs."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from forge.config.schema import ProblemsTable
from forge.data import generator
from forge.data.families import FAMILIES
from forge.data.families.ops import OPS, chains, is_sound
from forge.data.generator import Composition, Style, answer, generate_problems, sizes_of
from forge.data.problems import in_split
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError
from forge.records import Problem, Split


def test_there_are_as_many_families_operations_and_compositions_as_promised(
    generated: list[Problem],
) -> None:
    assert len(FAMILIES) == 6
    assert len(OPS) >= 12
    assert len({problem.problem_id for problem in generated}) == len(generated) >= 3000
    assert {problem.level for problem in generated} == {1, 2, 3, 4}


def test_too_many_problems_are_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generator, "MAX_CHAIN", 1)
    monkeypatch.setattr(generator, "LEVEL_WEIGHTS", {1: 1.0})
    with pytest.raises(ConfigError, match=r"problems.num_problems: 3200; the generator found \d+"):
        generate_problems(ProblemsTable(), seed=0)


def test_no_answer_of_one_split_is_an_answer_in_another(generated: list[Problem]) -> None:
    answers = [{answer(p) for p in in_split(generated, split)} for split in Split]
    assert all(answers)
    assert sum(map(len, answers)) == len(set.union(*answers))


def test_no_problem_to_train_on_has_the_model_of_a_heldout_one(generated: list[Problem]) -> None:
    table = ProblemsTable.model_validate({"dtypes": ["fp32", "bf16"], "num_problems": 800})
    for problems, num in ((generated, 3200), (generate_problems(table, seed=0), 800)):
        held = {normal_digest(one.source) for one in in_split(problems, Split.HELDOUT)}
        trained = in_split(problems, Split.SFT) + in_split(problems, Split.GRPO)
        assert len(held) > 32
        assert not held & {normal_digest(one.source) for one in trained}
        assert len(problems) >= num - table.num_reserved


def test_heldout_problems_cover_every_family_and_length_evenly(generated: list[Problem]) -> None:
    heldout = in_split(generated, Split.HELDOUT)
    cells = Counter((p.family, p.level) for p in heldout)
    assert len(heldout) == 64
    assert set(cells) == {(family, level) for family in FAMILIES for level in (1, 2, 3, 4)}
    assert max(cells.values()) - min(cells.values()) <= 1


def test_problems_depend_only_on_the_seed() -> None:
    table = ProblemsTable(num_problems=160)
    assert generate_problems(table, seed=3) == generate_problems(table, seed=3)
    assert generate_problems(table, seed=3) != generate_problems(table, seed=4)


def test_an_id_contains_the_whole_composition(generated: list[Problem]) -> None:
    for problem in generated:
        composition = Composition.parse(problem.problem_id)
        assert composition.problem_id == problem.problem_id
        assert (composition.family, len(composition.chain)) == (problem.family, problem.level)


@pytest.mark.parametrize("problem_id", ["", "softmax", "softmax-softmax", "level1/19_ReLU"])
def test_an_id_that_is_not_the_generators_is_refused(problem_id: str) -> None:
    with pytest.raises(ValueError, match="is no generated problem"):
        Composition.parse(problem_id)


def test_every_source_is_in_kernelbench_layout(generated: list[Problem]) -> None:
    for problem in generated[::50]:
        tree = ast.parse(problem.source)
        names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
        assert names == {"Model", "get_inputs", "get_init_inputs"}


@pytest.mark.parametrize(("num_heldout", "words"), [(8, "at least 24"), (200, "must leave some")])
def test_a_heldout_part_too_small_or_too_large_is_refused(num_heldout: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate_problems(ProblemsTable(num_problems=128, num_heldout=num_heldout), seed=0)


def test_a_step_without_effect_makes_no_sound_chain() -> None:
    assert not is_sound(("relu", "abs"))
    assert not is_sound(("sigmoid", "relu"))
    assert is_sound(("abs", "sigmoid"))


def test_an_extremum_on_a_plateau_makes_no_problem() -> None:
    """In one draw of six, two rows of 400 columns both give 0: a reference that is all 0."""
    accepts = FAMILIES["reduction"].accepts
    assert not accepts("max", ("hardsigmoid", "sin", "neg"))
    assert not accepts("max", ("relu", "neg"))
    assert accepts("sum", ("relu", "neg"))
    assert accepts("max", ("silu",))


@pytest.mark.parametrize(
    ("variant", "chain"),
    [("max", ("relu",)), ("max", ("elu", "silu")), ("min", ("softsign", "relu", "neg"))],
)
def test_a_step_that_does_not_change_the_extremum_makes_no_problem(
    variant: str, chain: tuple[str, ...]
) -> None:
    accepts = FAMILIES["reduction"].accepts
    assert is_sound(chain)
    assert not accepts(variant, chain)
    assert accepts("sum", chain)


def test_every_operation_starts_and_ends_sound_chains() -> None:
    sound = [chain for chain in chains(2) if is_sound(chain)]
    assert {chain[0] for chain in sound} == {chain[1] for chain in sound} == set(OPS)


def test_a_static_answer_reads_no_shape_and_contains_the_product_of_the_constants(
    generated: list[Problem],
) -> None:
    for problem in generated[::20]:
        sizes = sizes_of(problem)
        code = answer(problem, style=Style.STATIC)
        assert "shape" not in code.split("def forward")[1]
        assert "numel" not in code
        assert f"< {sizes['HEADS'] * sizes['DIM']}" in code
        assert code != answer(problem)
