"""Extraction of source from completions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.data.answers import extract

CODE = "import torch\nclass ModelNew:\n    pass\n"


def test_takes_the_last_block_that_defines_the_entry_point() -> None:
    text = f"```python\n# old\n{CODE}```\nbetter:\n```python\n# new\n{CODE}```\n```\nprint(1)\n```"
    assert extract(text).code == "# new\n" + CODE


def test_a_fence_may_have_any_tag_or_none() -> None:
    for tag in ("", "python", "triton", "py title=x"):
        assert extract(f"so:\n```{tag}\n{CODE}```").code == CODE


def test_triton_tags_are_blocks() -> None:
    assert extract(f"<triton>\n{CODE}</triton>").code == CODE.strip("\n")
    assert extract(f"<triton>\n```python\n{CODE}```\n</triton>").code == CODE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"<think>hm</think>\n```python\n{CODE}```", CODE),
        (f"```python\n# thought\n{CODE}```\n</think>\n```python\n{CODE}```", CODE),
        (f"<think>\n```python\n{CODE}```\n</think>\nno", "no_code_block"),
        (f"<think>\n```python\n{CODE}```", "unclosed_thinking"),
        (f"```python\n{CODE}", "no_code_block"),
    ],
)
def test_thinking_and_what_is_unclosed_are_no_answer(text: str, found: str) -> None:
    answer = extract(text)
    assert (answer.code or answer.reason) == found


def test_a_function_may_be_the_entry_point() -> None:
    code = "import torch\ndef softmaxNew(x):\n    return x\n"
    assert extract(f"```python\n{code}```", entry_point="softmax").code == code
    assert extract(f"```python\n{CODE}```\n```\n{code}```", entry_point="softmax").code == code
    assert extract(f"```python\n{code}```", entry_point="soft").reason == "no_entry_point"
    assert (
        extract("```python\nsoftmaxNew(x)\n```", entry_point="softmax").reason == "no_entry_point"
    )


@pytest.mark.parametrize("part", ["<triton>", "</triton>", "</think>", "```\n", "\n\n ", "<think>"])
def test_five_megabytes_of_marks_take_linear_time(part: str) -> None:
    """With quadratic time this would take hours and exceed the test's timeout."""
    text = part * (5_000_000 // len(part))
    assert not extract(text).is_ok
    assert extract(f"{text}</think>\n\n```\n{CODE}```").code == CODE


@pytest.mark.parametrize("line", ["```" + " " * 10**6 + "`", "~" * 10**6 + "`", "`" * 10**6 + "x`"])
def test_one_line_of_a_megabyte_takes_linear_time(line: str) -> None:
    """With backtracking over spaces, 8,000 characters took 0.2 s."""
    assert extract(line).reason == "no_code_block"
    assert extract(f"{line}\n```\n{CODE}```").code == CODE


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_code_block"),
        ("\0\x01\ufffd\udcff" * 99, "no_code_block"),
        ("```python\nclass Other: pass\n```", "no_entry_point"),
        ("```python\n    class ModelNew: pass\n```", "no_entry_point"),
        ("```python\nclass ModelNewer: pass\n```", "no_entry_point"),
        ("```python\nx = 1\n```", "no_entry_point"),
    ],
)
def test_a_missing_answer_has_a_reason(text: str, reason: str) -> None:
    found = extract(text)
    assert (found.code, found.reason) == ("", reason)


def test_a_class_with_a_syntax_error_is_still_the_answer() -> None:
    code = "class ModelNew:\n    def forward(self, x\n"
    assert extract(f"```\n{code}```").code == code


PARTS = [
    *("```", "```python\n", "~~~", "````", "\n```\n", "<think>", "</think>", "<triton>", "\n"),
    *("</triton>", "class ModelNew", "def ModelNew(", ":\n", " ", "\r\n", "\0", "\ud800", "x = 1"),
]


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_has_an_answer_that_is_part_of_it_or_a_reason(text: str) -> None:
    found = extract(text)
    assert found.reason in ("ok", "no_code_block", "no_entry_point", "unclosed_thinking")
    assert not found.is_ok or ("ModelNew" in found.code and found.code.strip("\n") in text)
