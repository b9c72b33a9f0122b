"""The steps of one row: texts, thinking, results, attempts, lengths, quality."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.data.answers import extract
from forge.data.build.output import LeftOutRow
from forge.data.build.steps import (
    Prepared,
    RowSteps,
    Step,
    find_fault,
    normalise_text,
    parse,
    passes,
)
from forge.data.chat import ChatTemplate
from forge.data.pairs.rows import Broken
from forge.data.prompts.prompt_set import make_prompts
from tests.data.build.samples import ANSWER, build_of, trinity_row, write_tokenizer
from tests.examples import examples
from tests.prompting import PROMPTS

KERNEL = ANSWER.format(name="Model", value="value", number=1)


def prepare(row: Any, **tables: Any) -> Prepared | LeftOutRow:
    build = build_of(**tables)
    steps = RowSteps(build=build, prompts=make_prompts(build.prompt), chat=None)
    return steps(row, number=1, origin="rows.jsonl:1")


def prepared(row: Any, **tables: Any) -> Prepared:
    found = prepare(row, **tables)
    assert isinstance(found, Prepared), found
    return found


def dropped(row: Any, **tables: Any) -> tuple[str, str]:
    found = prepare(row, **tables)
    assert isinstance(found, LeftOutRow)
    return found.step, found.reason


def conversation(*contents: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    messages[-1] |= fields
    return {"id": "one", "messages": messages}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\ufeffa\r\nb\rc", "a\nb\nc"),
        ("if x:\n\tif y:\n\t\tz = 'a\tb'", "if x:\n    if y:\n        z = 'a\tb'"),
        ("if x:\n    if y:\n\tz", "if x:\n    if y:\n        z"),
    ],
)
def test_line_ends_marks_and_tabs_become_one_form(text: str, wanted: str) -> None:
    assert normalise_text(text) == wanted


def test_a_row_with_crlf_is_the_same_row() -> None:
    plain = trinity_row()
    crlf = {k: v.replace("\n", "\r\n") if isinstance(v, str) else v for k, v in plain.items()}
    assert prepared(crlf).exact == prepared(plain).exact


MESSAGES: dict[str, Any] = {"input": {"format": "messages"}, "filters": {"quality": False}}


@pytest.mark.parametrize(
    ("content", "mode", "wanted"),
    [
        ("<think>why</think>code", "keep", "<t>\nwhy\n</t>\n\ncode"),
        ("<reasoning>\nwhy\n</reasoning>\n\ncode", "keep", "<t>\nwhy\n</t>\n\ncode"),
        ("why</think>\ncode", "keep", "<t>\nwhy\n</t>\n\ncode"),
        ("<think>\n\n</think>\n\ncode", "keep", "code"),
        ("<think>why</think>code", "drop", "code"),
        ("a <think> inside", "keep", "a <think> inside"),
    ],
)
def test_thinking_gets_one_pair_of_tags(content: str, mode: str, wanted: str) -> None:
    tables = {"thinking": {"mode": mode}, "prompt": {"thinking": "t"}}
    found = prepared(conversation("ask", content), **tables, **MESSAGES)
    assert found.example.messages[-1].content == wanted


def test_thinking_without_an_end_and_required_thinking_leave_rows_out() -> None:
    unclosed = conversation("ask", "<think>why")
    assert dropped(unclosed, **MESSAGES) == (Step.THINKING, "thinking without an end")
    bare = conversation("ask", "code")
    required = {"thinking": {"mode": "require"}, **MESSAGES}
    assert dropped(bare, **required) == (Step.THINKING, "without thinking")


@pytest.mark.parametrize(
    ("result", "wanted", "passed"),
    [
        ({"correctness": True}, "correctness", True),
        ({"correctness": False, "fast_0": True}, "correctness", False),
        ({"correctness": True, "fast_0": False}, "fast_0", False),
        ({"correctness": True, "speedup": 1.0, "fast_1": True}, "fast_1", False),
        ({"correctness": True, "speedup": 1.01}, "fast_1", True),
        ({"correctness": True, "speedup": 2.0}, "fast_2", True),
        ({"correctness": True, "speedup": 1.99, "fast_2": True}, "fast_2", False),
        ({"correctness": True, "fast_2": True}, "fast_2", True),
        ({"correctness": True, "speedup": float("nan")}, "fast_1", False),
        ({"correctness": True, "speedup": True}, "fast_1", False),
        ({"correctness": "yes"}, "correctness", False),
    ],
)
def test_results_pass_from_their_speed_up_else_from_their_flag(
    result: dict[str, Any], wanted: str, passed: bool
) -> None:
    assert passes(result, wanted=wanted) is passed


def trace_row(*turns: dict[str, Any], as_text: bool = False, **changes: Any) -> dict[str, Any]:
    last = turns[-1]
    row = {
        "sample_key": "kernelbook_7", "source": "kernelbook", "pytorch_code": "class Model: ...",
        "num_turns": len(turns), "stop_reason": "max_turns_reached",
        "final_triton_code": last.get("triton_code"), "final_result": last.get("result"),
        "turns": json.dumps(turns) if as_text else list(turns), "full_messages": "[]",
    }  # fmt: skip
    return row | changes


def turn(number: int, **result: Any) -> dict[str, Any]:
    code = KERNEL.replace("BLOCK=16", f"BLOCK={number}")
    return {"turn": number, "reasoning": f"try {number}", "triton_code": code, "result": result}


WRONG = {"correctness": False, "error": "Output mismatch: 3 of 16 differ"}
TRACES: dict[str, Any] = {"input": {"format": "traces"}}


@pytest.mark.parametrize("as_text", [False, True])
def test_a_trace_becomes_attempts_with_the_judges_words_and_ends_with_the_best(
    as_text: bool,
) -> None:
    slow, fast = ({"correctness": True, "fast_0": True, "speedup": s} for s in (0.5, 1.5))
    row = trace_row(turn(1, **WRONG), turn(2, **fast), turn(3, **slow), as_text=as_text)
    found = prepared(row, **TRACES).example
    assert [one.role for one in found.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    first, words, best = found.messages[2:]
    assert "<think>\ntry 1\n</think>" in first.content
    assert "judge> wrong: mismatch\njudge> Output mismatch" in words.content
    assert "BLOCK=2" in extract(best.content).code
    assert (found.num_turns, found.problem_id) == (2, "trinity/kernelbook_7")
    assert "ModelNew" in found.messages[0].content


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("CompilationError: at 3:4", "compile_error: not_triton"),
        ("RuntimeError: shapes", "runtime_error: exception"),
        (None, "wrong: mismatch"),
    ],
)
def test_the_words_about_an_attempt_name_what_failed(error: str | None, words: str) -> None:
    row = trace_row(turn(1, correctness=False, error=error), turn(2, correctness=True))
    assert words in prepared(row, **TRACES).example.messages[3].content


def test_a_trace_without_a_good_attempt_is_left_out() -> None:
    assert dropped(trace_row(turn(1, **WRONG)), **TRACES) == (Step.CONVERT, "result below fast_0")


def test_the_final_code_counts_if_no_turn_has_it() -> None:
    row = trace_row(turn(1, **WRONG), final_triton_code=KERNEL, final_result={"correctness": True})
    assert prepared(row, **TRACES).example.code == KERNEL


def test_columns_that_are_missing_are_named_with_what_was_found() -> None:
    found = prepare({"pytorch_code": "x"}, **TRACES)
    assert isinstance(found, LeftOutRow)
    assert found.step == Step.READ
    assert found.detail == "turns: found nothing; a list (columns here: pytorch_code)"


@pytest.mark.parametrize(
    ("size", "reason"), [(10, "too short"), (900, "too long"), (1_000_000, "too long")]
)
def test_rows_outside_the_lengths_are_left_out(size: int, reason: str, tmp_path: Path) -> None:
    chat = ChatTemplate.load(write_tokenizer(tmp_path / "model"))
    lengths = {"length": True, "min_tokens": 100, "max_tokens": 800, "quality": False}
    build = build_of(input={"format": "messages"}, filters=lengths)
    steps = RowSteps(build=build, prompts=PROMPTS, chat=chat)
    found = steps(conversation("ask", "x" * size), number=1, origin="a:1")
    assert isinstance(found, LeftOutRow)
    assert (found.step, found.reason) == (Step.LENGTH, reason)
    assert re.search(r"\d tokens$", found.detail)
    kept = steps(conversation("ask", "x" * 400), number=1, origin="a:1")
    assert isinstance(kept, Prepared)
    assert kept.num_tokens is not None
    assert 400 < kept.num_tokens < 500


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (KERNEL, None),
        (KERNEL.replace("@triton.jit", "@triton.autotune([], [])\n@triton.jit()"), None),
        (KERNEL.replace("class ", "clas "), "no Python"),
        ("x = 1\0", "no Python"),
        ("(" * 10_000, "no Python"),
        (KERNEL.replace("ModelNew", "Another"), "without the entry point"),
        (KERNEL.replace("@triton.jit", ""), "without a Triton kernel"),
        (KERNEL.replace("kernel[(1,)]", "print"), "kernel never launched"),
        (KERNEL.replace("kernel[(1,)]", "pass  # kernel[(1,)]"), "kernel never launched"),
    ],
)
def test_an_answer_is_python_with_an_entry_point_that_launches_a_kernel(
    code: str, fault: str | None
) -> None:
    assert find_fault(parse(code), answers_to="ModelNew") == fault


def test_rows_that_cannot_be_stored_are_left_out() -> None:
    row = trinity_row(sample_key="\ud800")
    assert dropped(row) == (Step.CONVERT, "text that is no Unicode")


def test_a_row_without_code_is_left_out() -> None:
    assert dropped(trinity_row(triton_code="")) == (
        Step.CONVERT, "without code in triton_code",
    )  # fmt: skip
    assert dropped(trinity_row(pytorch_code=" ")) == (Step.CONVERT, "without code in pytorch_code")
    assert dropped(Broken(reason="broken JSON")) == (Step.READ, "broken JSON")


JUNK = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
COLUMNS = (
    "messages", "id", "entry_point", "python_code", "triton_code", "sample_key", "pytorch_code",
    "result", "turns", "final_triton_code", "final_result", "full_messages", "role", "content",
    "correctness", "speedup", "reasoning", "sample_key",
)  # fmt: skip
TEXTS = st.sampled_from((KERNEL, "[]", "[{}]", '{"correctness": true}', "class ANew: ..."))
VALUES = JUNK | TEXTS | st.dictionaries(st.sampled_from(COLUMNS), JUNK | TEXTS, max_size=4)


@pytest.mark.parametrize("form", ["messages", "trinity", "traces"])
@given(row=st.dictionaries(st.sampled_from(COLUMNS), VALUES | st.lists(VALUES, max_size=3)))
@settings(max_examples=examples(30), deadline=None)
def test_no_row_ever_raises(form: str, row: dict[str, Any]) -> None:
    steps = RowSteps(build=build_of(input={"format": form}), prompts=PROMPTS, chat=None)
    found = steps(row, number=3, origin="rows.jsonl:3")
    assert found.origin == "rows.jsonl:3"
    if isinstance(found, LeftOutRow):
        assert found.step in list(Step)
        assert found.reason
