"""From completions to source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.extract import extract

CODE = "import torch\nclass ModelNew:\n    pass\n"


def test_takes_the_last_block_that_defines_the_entry_point() -> None:
    text = f"```python\n# old\n{CODE}```\nbetter:\n```python\n# new\n{CODE}```\n```\nprint(1)\n```"
    assert extract(text).code == "# new\n" + CODE


def test_any_tag_and_none_will_do() -> None:
    for tag in ("", "python", "triton", "py title=x"):
        assert extract(f"so:\n```{tag}\n{CODE}```").code == CODE


def test_triton_tags_are_blocks_too() -> None:
    assert extract(f"<triton>\n{CODE}</triton>").code == CODE.strip("\n")
    assert extract(f"<triton>\n```python\n{CODE}```\n</triton>").code == CODE


def test_thinking_is_no_answer() -> None:
    assert extract(f"<think>\n```python\n{CODE}```\n</think>\nno").reason == "no_code_block"
    assert extract(f"<think>hm</think>\n```python\n{CODE}```").is_ok


def test_a_thought_opened_by_the_template_is_no_answer() -> None:
    text = f"```python\n# thought\n{CODE}```\n</think>\n```python\n{CODE}```"
    assert extract(text).code == CODE


def test_unclosed_thinking_is_no_answer() -> None:
    assert extract(f"<think>\n```python\n{CODE}```").reason == "unclosed_thinking"


def test_an_unclosed_block_is_no_answer() -> None:
    assert extract(f"```python\n{CODE}").reason == "no_code_block"


def test_a_block_without_the_class_is_named() -> None:
    assert extract("```python\nx = 1\n```").reason == "no_entry_point"
    assert extract(f"```python\n{CODE}```", entry_point="Net").reason == "no_entry_point"


@given(
    st.text(alphabet=st.sampled_from(list("`~<>/thinkrio\n cdMoelNw:")), max_size=300)
    | st.text(max_size=300)
)
def test_never_raises(text: str) -> None:
    found = extract(text)
    assert found.is_ok == bool(found.code.strip())
