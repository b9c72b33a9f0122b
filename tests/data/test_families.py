"""The generator's problems: those of earlier versions, apart from held-out ones, and refused if
there are not enough."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from forge.config.load import load_experiment
from forge.config.schema import ProblemsTable
from forge.data import generator
from forge.data.generator import Composition, Style, answer, generate_problems
from forge.data.problems import in_split
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError
from forge.records import Split

HALF: dict[str, Any] = {"dtypes": ["fp32", "fp16", "bf16"]}


def digest(texts: list[str]) -> str:
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("values", "of_problems", "of_answers"),
    [
        ({}, "26a30149d7704689", "7afa7378cb6b988f"),
        (HALF, "f4e3895cee043b33", "1d4d4c33c5564a24"),
        ({"sizes": "gpu"}, "dfbae0712f21c6ae", "d570e2ca74c1173e"),
    ],
)
def test_the_problems_of_a_seed_are_those_of_earlier_versions(
    values: dict[str, Any], of_problems: str, of_answers: str
) -> None:
    """Figures of runs that are recorded stay comparable, and the answers are those that judges have
    found right. A change of a digest is a decision: tests/evalpool/test_families.py."""
    made = generate_problems(ProblemsTable.model_validate(values), seed=0)
    assert digest([p.problem_id + p.source + p.split for p in made]) == of_problems
    answers = [answer(one, style=style) for one in made[::10] for style in Style]
    assert digest(answers) == of_answers


@pytest.mark.parametrize(("values", "num"), [({}, 3200), ({**HALF, "num_problems": 800}, 800)])
def test_no_problem_to_train_on_has_the_model_of_a_heldout_one(
    values: dict[str, Any], num: int
) -> None:
    table = ProblemsTable.model_validate(values)
    problems = generate_problems(table, seed=3)
    held = {normal_digest(one.source) for one in in_split(problems, Split.HELDOUT)}
    trained = in_split(problems, Split.SFT) + in_split(problems, Split.GRPO)
    assert len(held) > 32
    assert not held & {normal_digest(one.source) for one in trained}
    assert len(problems) >= num - table.num_reserved


def test_too_many_problems_are_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "MAX_CHAIN", 1)
    monkeypatch.setattr(generator, "LEVEL_WEIGHTS", {1: 1.0})
    with pytest.raises(ConfigError, match=r"problems.num_problems: 3200; the generator found \d+"):
        generate_problems(ProblemsTable(), seed=0)


@pytest.mark.parametrize(("num_heldout", "words"), [(8, "at least 24"), (200, "must leave some")])
def test_a_heldout_part_too_small_or_too_large_is_refused(num_heldout: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate_problems(ProblemsTable(num_problems=128, num_heldout=num_heldout), seed=0)


@pytest.mark.parametrize("problem_id", ["", "softmax", "softmax-softmax", "level1/19_ReLU"])
def test_an_id_that_is_not_the_generators_is_refused(problem_id: str) -> None:
    with pytest.raises(ValueError, match="is no generated problem"):
        Composition.parse(problem_id)


def test_types_of_generated_problems_are_refused_for_files(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("")
    file = tmp_path / "x.toml"
    file.write_text(
        f'name = "x"\n[problems]\nsource = "dir"\npath = "{tmp_path}"\ndtypes=["bf16"]\n'
        '[model]\npath = "m"\n[[stage]]\nkind = "eval"\n'
    )
    with pytest.raises(ConfigError, match=r"problems.dtypes: found .* only"):
        load_experiment(file)
