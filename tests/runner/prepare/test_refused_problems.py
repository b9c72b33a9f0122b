"""Problems that would reward a trivial answer: left out of GRPO, recorded, the same on resume."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from forge.config.load import load_experiment
from forge.config.schema import Experiment
from forge.errors import ConfigError
from forge.records import Problem, Split
from forge.records.examination import Examination, Flag
from forge.runner.live.progress import Progress
from forge.runner.prepare.prepare import find_refused, is_examined, refusal
from forge.runner.stages.run_context import RunContext
from forge.store.layout import RunPaths, create_run

TOML = """
name = "x"
[model]
path = "{folder}"
[problems]
source = "dir"
path = "{folder}"
{more}
[[stage]]
kind = "{kind}"
"""
STEPS = "steps = 2\nlearning_rate = 1e-4\n"


def load(folder: Path, *, kind: str = "grpo", more: str = "") -> Experiment:
    (folder / "p.py").touch()
    file = folder / "x.toml"
    text = TOML.format(folder=folder, kind=kind, more=more)
    file.write_text(text + STEPS if kind == "grpo" else text)
    return load_experiment(file)


def make_problems(*splits: Split) -> list[Problem]:
    return [
        Problem(problem_id=f"p{number}", source="", family="", level=1, split=split)
        for number, split in enumerate(splits)
    ]


class FakePool:
    """A pool with a fixed examination for each problem, which counts its requests."""

    num_judges = num_examined = 2

    def __init__(self, flags: dict[str, Flag]) -> None:
        self.flags = flags
        self.asked: list[str] = []

    async def examine(self, problem: Problem) -> Examination:
        self.asked.append(problem.problem_id)
        flag = self.flags.get(problem.problem_id)
        return Examination(problem_id=problem.problem_id, flags={flag: "why"} if flag else {})


def refuse(problems: list[Problem], pool: FakePool, paths: RunPaths) -> dict[str, str]:
    progress = Progress(run="x", num_stages=1)

    async def find() -> dict[str, str]:
        return await find_refused(problems, paths=paths, pool=cast("Any", pool), progress=progress)

    return anyio.run(find)


def test_only_trivial_and_unusable_problems_of_grpo_are_refused(tmp_path: Path) -> None:
    problems = make_problems(Split.GRPO, Split.GRPO, Split.HELDOUT, Split.GRPO, Split.GRPO)
    flags = {"p0": Flag.CONSTANT, "p2": Flag.CONSTANT, "p3": Flag.VECTOR_INSENSITIVE,
             "p4": Flag.SLOW}  # fmt: skip
    pool, paths = FakePool(flags), create_run("x", store_dir=tmp_path)
    assert refuse(problems, pool, paths) == {"p0": "constant", "p4": "slow"}
    assert sorted(pool.asked) == ["p0", "p1", "p3", "p4"]
    assert refuse(problems, pool, paths) == {"p0": "constant", "p4": "slow"}
    assert len(pool.asked) == 4  # a resumed run reads what the first attempt found


def test_a_run_without_trainable_problems_is_refused_in_one_line(tmp_path: Path) -> None:
    pool, paths = FakePool({"p0": Flag.IDENTITY}), create_run("x", store_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"p0 \(identity\).*allow_flagged.*none is left"):
        refuse(make_problems(Split.GRPO), pool, paths)


def test_the_message_names_some_problems_and_counts_the_rest() -> None:
    line = refusal({f"p{n}": "slow" for n in range(10)}, num_problems=50)
    assert line.startswith(
        "problems.path: 10 of 50 problems are not trained on (10 unjudgeable): p0"
    )
    assert ": p0 (slow), " in line
    assert "p7 (slow) and 2 more; " in line
    both = refusal({"a": "constant, slow", "b": "identity", "c": "constant"}, num_problems=9)
    assert "3 of 9 problems are not trained on (1 unjudgeable, 2 trivial): a (const" in both


def test_only_problem_files_for_grpo_are_examined_unless_flags_are_allowed(tmp_path: Path) -> None:
    assert is_examined(load(tmp_path))
    assert not is_examined(load(tmp_path, kind="eval"))
    assert not is_examined(load(tmp_path, more="allow_flagged = true"))


def test_a_refused_problem_is_evaluated_and_not_trained_on() -> None:
    shared = SimpleNamespace(problems=make_problems(Split.GRPO, Split.GRPO), refused={"p0"})
    of = RunContext.problems_of
    assert [one.problem_id for one in of(cast("Any", shared), Split.GRPO)] == ["p1"]
    assert [one.problem_id for one in of(cast("Any", shared), Split.HELDOUT)] == ["p0", "p1"]
