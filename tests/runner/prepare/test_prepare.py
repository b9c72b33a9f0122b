"""Prepared pairs: made once, made again if damaged, and without rows of held-out problems. Problems
that would reward a trivial answer: left out of GRPO, recorded, the same on resume."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from forge.config.load import load_experiment
from forge.config.schema import Experiment
from forge.data.problems import load_problems
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Split, Status, Verdict
from forge.records.examination import Examination, Flag
from forge.runner.live.progress import Progress
from forge.runner.prepare.prepare import (
    data_dir,
    delete_damaged,
    examined_splits,
    find_refused,
    load_pairs,
    prepare_pairs,
    refusal,
    without_heldout,
    write_kept,
)
from forge.runner.stages.run_context import RunContext
from forge.store.layout import RunPaths, create_run
from tests.prompting import PROMPTS

MODULE = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(4, 4)]

def get_init_inputs():
    return []
"""
ROW = {
    "id": "mine",
    "messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}],
}
STAGES = """
[[stage]]
kind = "sft"
steps = 1
learning_rate = 1e-3

[[stage]]
kind = "eval"
"""
TEXT = '{"a": 1}\n{"a": "ä"}\n'
SFT = {"kind": "sft", "steps": 1, "learning_rate": 1e-3}
EVAL = {"kind": "eval"}


async def no_judge(problem: Problem, code: str) -> None:
    raise AssertionError("rows of a file are not judged")


@pytest.mark.parametrize("problems", ["generated", "dir"])
async def test_rows_of_a_file_are_trained_on_even_if_a_later_stage_has_judges(
    problems: str, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{json.dumps(ROW)}\n" * 2)
    folder = tmp_path / "level1"
    folder.mkdir()
    (folder / "1_relu.py").write_text(MODULE)
    model, table = 'init = "tiny"', "num_problems = 64\nnum_heldout = 24"
    if problems == "dir":
        model, table = f'path = "{folder}"', f'source = "dir"\npath = "{tmp_path}"'
    file = tmp_path / "file_then_eval.toml"
    file.write_text(
        f'name = "x"\n[model]\n{model}\n[problems]\n{table}\n'
        f'[data]\nsource = "file"\npath = "{rows}"\n{STAGES}'
    )
    experiment = load_experiment(file)
    paths = create_run("x", store_dir=tmp_path / "runs")

    said: list[str] = []
    pairs = await prepare_pairs(
        experiment,
        load_problems(experiment.problems, seed=0),
        prompts=PROMPTS,
        paths=paths,
        judge=no_judge,  # type: ignore[arg-type]
        progress=Progress(run="x", num_stages=2),
        say=said.append,
    )

    assert said == [f"1 rows from {rows}; left out: 1 the same again (first: {rows.name}, row 2)"]
    assert [pair.problem_id for pair in pairs] == ["mine"]
    assert load_pairs(paths) == pairs


async def test_rows_of_several_sources_keep_their_source_and_an_empty_one_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({**ROW, "id": "other"}) + "\n")
    sources = [{"source": "file", "path": tmp_path / f"{name}.jsonl"} for name in "ab"]
    mixed = Experiment.model_validate(
        {
            "name": "x", "model": {"path": "m"}, "problems": {"num_problems": 64},
            "data": {"sources": sources}, "stage": [SFT],
        }
    )  # fmt: skip

    async def prepared(number: int) -> list[Pair]:
        return await prepare_pairs(
            mixed, [], prompts=PROMPTS, paths=create_run(f"x{number}", store_dir=tmp_path),
            judge=None, progress=Progress(run="x", num_stages=1),
        )  # fmt: skip

    assert [(pair.source, pair.problem_id) for pair in await prepared(0)] == [
        (0, "mine"),
        (1, "other"),
    ]
    (tmp_path / "b.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"^data.sources.1.path: .*b.jsonl: no row to train on"):
        await prepared(1)


async def test_the_live_line_counts_judged_broken_answers(tmp_path: Path) -> None:
    file = tmp_path / "few.toml"
    file.write_text(
        'name = "x"\n[model]\ninit = "tiny"\n[problems]\nnum_problems = 64\nnum_heldout = 24\n'
        f"sft_by_level = [2, 2, 2, 2]\n[data]\nrepair_share = 1.0\n"
        f"[rollout]\nmax_turns = 2\n{STAGES}"
    )
    experiment = load_experiment(file)
    progress = Progress(run="x", num_stages=2)
    asked: list[str] = []

    async def judge(problem: Problem, code: str) -> Verdict:
        asked.append(code)
        return Verdict(status=Status.WRONG, reason="mismatch", detail="words")

    await prepare_pairs(
        experiment,
        load_problems(experiment.problems, seed=0),
        prompts=PROMPTS,
        paths=create_run("x", store_dir=tmp_path / "runs"),
        judge=judge,
        progress=progress,
    )
    assert progress.label == f"prepare: broken answers {len(asked)} of {len(asked)}"
    assert len(asked) > 1


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = create_run("x", store_dir=tmp_path)
    for name in ("pairs.jsonl", "rows-0.jsonl"):
        write_kept(data_dir(paths) / name, TEXT)
    return paths


@pytest.mark.parametrize("content", [b"", b'{"a": 1}\n', b"\xff garbage", TEXT.encode()[:-1]])
def test_only_the_damaged_file_is_deleted(paths: RunPaths, content: bytes) -> None:
    (data_dir(paths) / "rows-0.jsonl").write_bytes(content)
    assert delete_damaged(paths) == ["data/rows-0.jsonl"]
    assert not (data_dir(paths) / "rows-0.jsonl").exists()
    assert (data_dir(paths) / "pairs.jsonl").read_text(encoding="utf-8") == TEXT


def problem(op: str, *, name: str = "Model", size: int = 8, split: Split = Split.SFT) -> Problem:
    source = f"""import torch

class {name}(torch.nn.Module):
    def forward(self, x):
        return torch.{op}(x)

def get_inputs():
    return [torch.randn({size})]

def get_init_inputs():
    return []
"""
    return Problem(
        problem_id=f"held/{op}", source=source, family="x", level=1, split=split, entry_point=name
    )


def row(number: int, made: Problem, *, fenced: bool = False) -> Pair:
    system, user = PROMPTS.first_messages(made)
    if fenced:
        user = Message(role="user", content=f"Rewrite this.\n```python\n{made.source}```\nNow.")
    answer = Message(role="assistant", content="an answer")
    return Pair(problem_id=f"book/{number}", messages=(system, user, answer), num_turns=1)


def experiment(*stages: dict[str, Any], **problems: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "x",
            "model": {"init": "tiny"},
            "problems": problems,
            "data": {"source": "file", "path": Path("rows.jsonl")},
            "stage": list(stages or (SFT, EVAL)),
        }
    )


PLACE = "data.path: rows.jsonl"
HELDOUT = [problem("abs", split=Split.HELDOUT)]
ROWS = [row(0, problem("exp")), row(1, problem("abs", name="Other", size=99))]


@pytest.mark.parametrize("planted", [ROWS[1], row(1, problem("abs", size=3), fenced=True)])
def test_a_planted_duplicate_is_refused_with_both_names(planted: Pair) -> None:
    with pytest.raises(ConfigError) as caught:
        without_heldout([ROWS[0], planted], HELDOUT, experiment(), place=PLACE)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("data.path: rows.jsonl: row book/1 is to be trained on and held/abs is")
    assert 'problems.duplicates = "drop"' in line


def test_duplicates_may_be_dropped_or_allowed() -> None:
    assert without_heldout(ROWS, HELDOUT, experiment(duplicates="drop"), place=PLACE) == ROWS[:1]
    assert without_heldout(ROWS, HELDOUT, experiment(duplicates="allow"), place=PLACE) == ROWS
    with pytest.raises(ConfigError, match="row book/1"):
        without_heldout(ROWS[1:], HELDOUT, experiment(duplicates="drop"), place=PLACE)


def test_rows_are_free_without_an_evaluation_after_them_or_without_heldout_problems() -> None:
    assert without_heldout(ROWS, HELDOUT, experiment(EVAL, SFT), place=PLACE) == ROWS
    assert (
        without_heldout(ROWS, [problem("abs", split=Split.GRPO)], experiment(), place=PLACE) == ROWS
    )


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
    file.write_text(text + {"grpo": STEPS, "search": 'budget = "8"\n'}.get(kind, ""))
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


def refuse(
    problems: list[Problem], pool: Any, paths: RunPaths, split: Split = Split.GRPO
) -> dict[str, str]:
    progress = Progress(run="x", num_stages=1)
    return anyio.run(find_refused, problems, {split}, paths, pool, progress)


def test_only_trivial_and_unusable_problems_of_grpo_are_refused(tmp_path: Path) -> None:
    problems = make_problems(Split.GRPO, Split.GRPO, Split.HELDOUT, Split.GRPO, Split.GRPO)
    flags = {"p0": Flag.CONSTANT, "p2": Flag.CONSTANT, "p3": Flag.VECTOR_INSENSITIVE,
             "p4": Flag.SLOW}  # fmt: skip
    pool, paths = FakePool(flags), create_run("x", store_dir=tmp_path)
    assert refuse(problems, pool, paths) == {"p0": "constant: why", "p4": "slow: why"}
    assert sorted(pool.asked) == ["p0", "p1", "p3", "p4"]
    assert refuse(problems, pool, paths) == {"p0": "constant: why", "p4": "slow: why"}
    assert len(pool.asked) == 4  # a resumed run reads what the first attempt found


def test_a_run_without_trainable_problems_is_refused_in_one_line(tmp_path: Path) -> None:
    pool, paths = FakePool({"p0": Flag.IDENTITY}), create_run("x", store_dir=tmp_path)
    for split in (Split.GRPO, Split.HELDOUT):
        with pytest.raises(ConfigError, match=r"p0 \(identity: why\).*allow_flagged.*none is left"):
            refuse(make_problems(split), pool, paths, split)


def test_the_message_names_some_problems_and_counts_the_rest() -> None:
    line = refusal({f"p{n}": "slow" for n in range(10)}, num_problems=50)
    assert line.startswith("problems.path: 10 of 50 problems are left out: p0 (slow), ")
    assert "p7 (slow) and 2 more; " in line


def test_only_files_for_grpo_or_a_search_are_examined_unless_flags_are_allowed(
    tmp_path: Path,
) -> None:
    assert examined_splits(load(tmp_path)) == {Split.GRPO}
    assert examined_splits(load(tmp_path, kind="search")) == {Split.HELDOUT}
    assert not examined_splits(load(tmp_path, kind="eval"))
    assert not examined_splits(load(tmp_path, more="allow_flagged = true"))


def test_a_refused_problem_is_evaluated_and_not_trained_on() -> None:
    shared = SimpleNamespace(problems=make_problems(Split.GRPO, Split.GRPO), refused={"p0"})
    of = RunContext.problems_of
    assert [one.problem_id for one in of(cast("Any", shared), Split.GRPO)] == ["p1"]
    assert [one.problem_id for one in of(cast("Any", shared), Split.HELDOUT)] == ["p0", "p1"]
