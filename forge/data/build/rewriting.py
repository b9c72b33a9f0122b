"""The step "rewrite": Inductor's answers as plain Triton modules (`forge.data.inductor`)."""

from __future__ import annotations

from forge.data.build.steps import NotRewritable
from forge.data.inductor import NotRewritten, rewrite

MARK = "torch._inductor"
"""Imported by every answer that Inductor made, for its heuristics and helpers."""


def rewrite_answer(code: str, entry_point: str) -> str:
    """A plain module of Inductor's code; other code as it is.

    Raises:
        NotRewritable: with a `RewriteReason`.
    """
    if MARK not in code:
        return code
    try:
        return rewrite(code, entry_point=entry_point).code
    except NotRewritten as error:
        raise NotRewritable(str(error.reason)) from None
