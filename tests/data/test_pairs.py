"""SFT rows of generated problems: answers in one turn, and repairs after the judge's feedback."""

from functools import cache
from random import Random

import anyio
import anyio.lowlevel
import pytest

from forge.config.schema import DataTable, ProblemsTable
from forge.data.generator import Style, answer, generate_problems
from forge.data.pairs.generated import break_answer, make_pairs
from forge.data.problems import in_split
from forge.records import Pair, Problem, Split, Status, Verdict
from tests.prompting import PROMPTS


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
