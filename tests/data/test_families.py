"""The generator's problems: those of earlier versions, apart from held-out ones, and refused if
there are not enough; SFT rows of them: answers in one turn, repairs after the judge's feedback."""

import hashlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from forge.config.load import load_experiment
from forge.config.schema import DataTable, ProblemsTable
from forge.data import generator
from forge.data.generator import Composition, Style, answer, generate_problems
from forge.data.pairs.generated import break_answer, make_pairs
from forge.data.problems import in_split
from forge.data.sources.normal_form import normal_digest
from forge.errors import ConfigError
from forge.records import Pair, Problem, Split, Status, Verdict
from tests.prompting import PROMPTS

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


@cache
def sft_problems() -> list[Problem]:
    problems = generate_problems(ProblemsTable(num_problems=400), seed=0)
    return in_split(problems, Split.SFT)[:40]


class CountingJudge:
    """Gives every candidate one status; counts requests, and how many ran at once."""

    def __init__(self, status: Status = Status.WRONG) -> None:
        self.status = status
        self.asked: list[tuple[Problem, str]] = []
        self.most_at_once = self._now = 0

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        self.asked.append((problem, code))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        await anyio.lowlevel.checkpoint()
        self._now -= 1
        return Verdict(status=self.status, reason="code", detail="the judge's detail")


def _make(
    judge: CountingJudge, *, max_turns: int = 3, static_share: float = 0.0,
    rows: list[Problem] | None = None,
) -> list[Pair]:  # fmt: skip
    table = DataTable(repair_share=0.25, static_share=static_share)
    given = {"prompts": PROMPTS, "max_turns": max_turns, "seed": 0, "judge": judge}
    return anyio.run(lambda: make_pairs(rows or sft_problems(), table, **given))


def test_every_problem_has_its_honest_answer_after_the_played_prompt() -> None:
    rows = [pair for pair in _make(CountingJudge()) if pair.num_turns == 1]
    assert len(rows) >= len(sft_problems()) == 40
    assert {pair.problem_id for pair in rows} == {problem.problem_id for problem in sft_problems()}
    by_id = {problem.problem_id: problem for problem in sft_problems()}
    for pair in rows:
        problem = by_id[pair.problem_id]
        assert pair.messages[:-1] == PROMPTS.first_messages(problem)
        text = pair.messages[-1].content
        assert text.startswith("<think>\n")
        assert f"```python\n{answer(problem)}```" in text


def test_a_repair_has_broken_answers_the_judges_feedback_and_the_honest_answer() -> None:
    judge = CountingJudge()
    rows = [pair for pair in _make(judge) if pair.num_turns > 1]
    assert len(rows) == 10
    assert {pair.num_turns for pair in rows} == {2, 3}
    assert sum(pair.num_turns - 1 for pair in rows) == len(judge.asked) > 10
    assert judge.most_at_once == len(judge.asked), "all are asked at once, for the judge to queue"
    broken = {(problem.problem_id, code) for problem, code in judge.asked}
    for pair in rows:
        roles = [message.role for message in pair.messages]
        assert roles == ["system", "user"] + ["assistant", "user"] * (pair.num_turns - 1) + [
            "assistant"
        ]
        for answer_index in range(2, len(roles) - 1, 2):
            code = pair.messages[answer_index].content.split("```python\n")[1].removesuffix("```")
            assert (pair.problem_id, code) in broken
            assert "the judge's detail" in pair.messages[answer_index + 1].content


@pytest.mark.parametrize(("share", "style"), [(0.0, "dynamic"), (1.0, "static")])
def test_broken_answers_name_the_style_of_first_answers(share: float, style: str) -> None:
    rows = [pair for pair in _make(CountingJudge(), static_share=share) if pair.num_turns > 1]
    assert len(rows) == 10
    for pair in rows:
        *broken, honest = [one.content for one in pair.messages if one.role == "assistant"]
        assert all(f" {style}\n</think>" in text for text in broken)
        assert " dynamic\n</think>" in honest


@pytest.mark.parametrize("status", [Status.CORRECT, Status.INFRA_ERROR])
def test_a_broken_answer_that_is_accepted_or_not_judged_makes_no_row(status: Status) -> None:
    judge = CountingJudge(status)
    rows = _make(judge)
    assert len(judge.asked) >= 10, "the judge got broken answers"
    assert len(rows) == len(sft_problems())
    assert {pair.num_turns for pair in rows} == {1}


def test_broken_and_honest_answers_are_laid_out_for_the_problems_scale() -> None:
    table = ProblemsTable(num_problems=400, sizes="gpu")
    rows = in_split(generate_problems(table, seed=0), Split.SFT)
    judge = CountingJudge()

    pairs = [pair for pair in _make(judge, rows=rows) if pair.problem_id.startswith("softmax")]
    assert {pair.num_turns for pair in pairs} >= {1, 2}
    for pair in pairs:
        codes = [m.content for m in pair.messages if m.role == "assistant"]
        assert all("num_warps=8" in code for code in codes)
    assert any("BLOCK=128" in code for _, code in judge.asked)


def test_the_same_seed_makes_the_same_rows() -> None:
    assert _make(CountingJudge()) == _make(CountingJudge())


@pytest.mark.parametrize(("max_turns", "played"), [(1, {1}), (2, {1, 2}), (4, {1, 2, 3})])
def test_repairs_have_no_more_turns_than_a_rollout(max_turns: int, played: set[int]) -> None:
    assert {pair.num_turns for pair in _make(CountingJudge(), max_turns=max_turns)} == played


@pytest.mark.parametrize("style", list(Style))
def test_a_broken_answer_differs_from_the_honest_one(style: Style) -> None:
    rng = Random(0)
    for problem in sft_problems():
        assert break_answer(problem, style=style, rng=rng) != answer(problem, style=style)
