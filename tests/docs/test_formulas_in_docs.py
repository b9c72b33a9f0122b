"""Formulas of a page, as the site's hook hands them to Markdown."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from docs.generate.hook import on_page_markdown

PAGE = "Before\n\n```math\na_b\n```\n\n$`\\gamma`$ is 0.4; ours has\n$`H`$ terms.\n"


@pytest.fixture
def mathml(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` alone installs the converter: here its output is the source in an element."""

    def convert(latex: str, display: str = "inline") -> str:
        return f'<math display="{display}">{latex.strip()}</math>'

    monkeypatch.setitem(sys.modules, "latex2mathml.converter", SimpleNamespace(convert=convert))


@pytest.mark.usefixtures("mathml")
def test_no_line_begins_with_a_formula_which_markdown_would_take_for_a_paragraph() -> None:
    lines = on_page_markdown(PAGE).splitlines()
    assert not [line for line in lines if line.startswith("<math")]
    assert [line for line in lines if '<span><math display="inline">' in line] == lines[-2:]


@pytest.mark.usefixtures("mathml")
def test_a_formula_of_its_own_is_in_an_element_that_scrolls() -> None:
    assert '<div class="formula"><math display="block">a_b</math></div>' in on_page_markdown(PAGE)


def test_a_page_without_formulas_is_unchanged() -> None:
    assert on_page_markdown("costs $5 and $6\n") == "costs $5 and $6\n"
