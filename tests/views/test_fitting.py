"""Rows of any query are readable on a terminal of any width, and complete."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from forge.store.read_only import RowTable
from forge.views.text.fitting import Fitting

WIDE = RowTable(
    columns=("problem_id", *(f"a_long_name_{n}" for n in range(12)), "code"),
    rows=(("softmax-0001", *range(12), "def f():\n    return [1]\x1b[2J"), ("p", *[None] * 13)),
)
RATES = RowTable(
    columns=("stage", "policy_version", "pass_at_1", "pass_at_1_greedy", "compile_rate"),
    rows=(("eval-0", 1, 0.21875, None, 0.123456), ("grpo-3@10", 21, 0.5, 0.25, 1.0)),
)


def drawn(table: RowTable, *, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(Fitting(table))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


def test_a_table_that_fits_is_a_table() -> None:
    assert drawn(RATES, width=80)[0].split(" ┃ ") == [
        " stage    ", "policy_version", "pass_at_1", "pass_at_1_greedy", "compile_rate",
    ]  # fmt: skip


def test_a_table_that_fits_with_folded_names_is_one_with_shorter_numbers() -> None:
    lines = drawn(RATES, width=48)
    heads = lines[: next(n for n, line in enumerate(lines) if "──" in line)]
    assert " ".join(heads).split().count("pass_") == 2
    assert heads[-1].split() == ["stage", "version", "at_1", "greedy", "rate"]
    assert [line.split() for line in lines[-2:]] == [
        ["eval-0", "1", "0.2188", "0.1235"],
        ["grpo-3@10", "21", "0.5", "0.25", "1"],
    ]


def test_a_time_is_shown_to_the_second() -> None:
    table = RowTable(columns=("at", "loss"), rows=((1795259248.118, 1.5e-7),))
    assert drawn(table, width=80)[-1].split(" │ ") == [" 1795259248.1", "1.5e-07"]


@pytest.mark.parametrize(
    ("width", "heads"),
    [(80, "stage policy_version pass_at_1 pass_at_1_greedy compile_rate"),
     (66, "stage policy_version pass_at_1 compile_rate"), (30, "stage compile_rate")],
)  # fmt: skip
def test_columns_that_may_go_are_left_out_before_names_are_folded(width: int, heads: str) -> None:
    out = io.StringIO()
    gone = ("pass_at_1_greedy", "policy_version", "pass_at_1")
    Console(file=out, width=width).print(Fitting(RATES, expendable=gone))
    assert out.getvalue().splitlines()[0].replace("┃", " ").split() == heads.split()


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_with_too_many_columns_is_one_block_per_row(width: int) -> None:
    lines = drawn(WIDE, width=width)
    assert lines[:3] == ["─ row 1", "problem_id      softmax-0001", "a_long_name_0   0"]
    assert "    return [1]␛[2J" in "\n".join(lines)
    assert lines[lines.index("─ row 2") :] == ["─ row 2", "problem_id  p"]


def test_rows_without_columns_and_columns_without_rows_are_drawn() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(Fitting(RowTable(columns=(), rows=())))
    assert drawn(RowTable(columns=("a", "b"), rows=()), width=80)[0] == " a ┃ b"
