"""`forge questions N` begins with the answer in one sentence, made from the rows below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forge.store.reader import open_run
from forge.store.statements import RowTable
from forge.views.sql import questions as view
from forge.views.sql.sentences import ANSWERS, MISSING, sentence
from tests.views.terminals import EVIL, shown

if TYPE_CHECKING:
    from forge.store.layout import RunPaths

WITH_QUERIES = [each for each in view.QUESTIONS if each.queries]


def table(*rows: dict[str, Any]) -> RowTable:
    columns = tuple(rows[0]) if rows else ()
    return RowTable(columns=columns, rows=tuple(tuple(row.values()) for row in rows))


def steps(*rates: float | None, is_open: int = 0) -> RowTable:
    return table(
        *({"stage": 1, "step": n, "is_open": is_open, "pass_rate": rate}
          for n, rate in enumerate(rates, start=1))
    )  # fmt: skip


def learning(found: RowTable, *levels: dict[str, Any]) -> str:
    return sentence(1, {"learning": found, "pass-rate": found, "levels": table(*levels)})


def test_every_question_of_one_run_has_a_sentence() -> None:
    assert ANSWERS.keys() == {each.number for each in WITH_QUERIES}
    assert MISSING.keys() <= ANSWERS.keys()


@pytest.mark.parametrize("question", WITH_QUERIES, ids=lambda each: str(each.number))
def test_a_real_run_gets_its_sentence_below_the_question(
    canned_template: RunPaths, question: view.ResearchQuestion
) -> None:
    with open_run(canned_template) as reader:
        answers = view.answer(reader, question)
    said = sentence(question.number, answers)
    assert said.endswith(".")
    assert "None " not in said.removeprefix("None of the")
    assert "nan" not in said
    words = " ".join(shown(view.render_answers(question, answers)).split())
    assert words.startswith(f"{question.number}. {question.text} {said}")


@pytest.mark.parametrize("question", WITH_QUERIES, ids=lambda each: str(each.number))
def test_a_run_without_rows_gets_a_sentence_too(question: view.ResearchQuestion) -> None:
    assert sentence(question.number, dict.fromkeys(question.queries, table())).endswith(".")


def test_a_rising_pass_rate_is_said_with_its_figures() -> None:
    said = learning(steps(0.1, 0.12, 0.5, 0.52), {"num_solved": 3, "num_problems": 8})
    assert "rose from 11.0 % in the first 2 steps to 51.0 % in the last 2" in said
    assert said.endswith("; 3 of 8 training problems were solved at least once.")


def test_a_falling_pass_rate_is_no_success() -> None:
    assert "fell from 51.0 %" in learning(steps(0.5, 0.52, 0.1, 0.12))


def test_a_change_within_its_noise_is_not_claimed() -> None:
    said = learning(steps(0.1, 0.5, 0.12, 0.52))
    assert "shows no clear change: from 30.0 % in the first 2 steps to 32.0 % in the last 2" in said


def test_few_or_open_steps_say_nothing_yet() -> None:
    assert learning(steps(0.1, 0.9)).startswith("Too early to say: 2 steps of GRPO have finished")
    assert learning(steps(0.1, 0.2, 0.8, 0.9, is_open=1)).startswith("Too early to say: 0 steps")


def test_a_suspicious_sign_is_counted_by_kind() -> None:
    odd = [{"odd": each} for each in ("", "times do not vary", "times do not vary")]
    said = sentence(6, {"suspects": table(*odd)})
    assert said == "2 of the 3 highest rewards have a suspicious sign: 2 times do not vary."


def test_a_hostile_name_in_a_sentence_is_printable() -> None:
    row = {
        "problem_id": EVIL, "ranked_by": EVIL, "policy_version": 1, "step": 2, "speedup_low": None,
    }  # fmt: skip
    question = view.find_question("4")
    tables = {"best-of-problem": table(row), "best-kernels": table()}
    assert "\x1b" not in shown(view.render_answers(question, tables))
