"""Inline assembly that a kernel may hold: one approximate instruction of PTX on a float32.

Part of the closed list (`dialect.py`), read by the compiler's child and by the evaluator.
`tanh.approx.f32 $0, $1;` and its like are functions that Triton's language lacks.
"""

from __future__ import annotations

import re

_TEMPLATE = re.compile(
    r"\s*(?:cos|ex2|lg2|rcp|rsqrt|sin|sqrt|tanh)\.approx(?:\.ftz)?\.f32\s+\$0\s*,\s*\$1\s*;?\s*"
)
_CONSTRAINTS = re.compile(r"=[fr]\s*,\s*[fr]")


def refusal(template: str, constraints: str) -> str:
    """Returns the reason to refuse a template, or an empty string."""
    if _TEMPLATE.fullmatch(template) and _CONSTRAINTS.fullmatch(constraints.strip()):
        return ""
    text = " ".join(f"{template} {constraints}".split())[:80]
    return f"assembly cannot be judged but for one approximate instruction on float32: {text!r}"
