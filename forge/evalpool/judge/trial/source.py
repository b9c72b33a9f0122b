# pyright: strict
"""Checks a candidate's source before anything runs: its size, its syntax, its entry point.

A friendly check, not a boundary: what a source does is seen in its program.
"""

from __future__ import annotations

import ast
import warnings

from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.trial.host_parts import bound_names
from forge.records.reason import Reason, Status
from forge.records.syntax import syntax_tree
from forge.records.verdict import Verdict

MAX_CODE_BYTES = 256_000
"""Size limit of a candidate's source, in bytes of UTF-8."""


def check_source(code: str, *, entry_point: str) -> Verdict | None:
    """A fault that needs no run to be seen; None if the source may run."""
    if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
        detail = f"the source is longer than {MAX_CODE_BYTES} bytes"
        return Verdict(status=Status.REJECTED, reason=Reason.TOO_LONG, detail=detail)
    try:
        tree = _parse(code)
    except SyntaxError as error:
        return _syntax_error(at_line(code, error.lineno, f"{type(error).__name__}: {error.msg}"))
    except (ValueError, RecursionError, MemoryError) as error:
        return _syntax_error(f"the source cannot be parsed: {type(error).__name__}")
    imported = {o.asname or o.name for o in ast.walk(tree) if isinstance(o, ast.alias)}
    if entry_point not in bound_names(tree) | imported:
        detail = f"the answer does not define class {entry_point}"
        return Verdict(status=Status.REJECTED, reason=Reason.NO_ENTRY_POINT, detail=detail)
    return None


def _parse(code: str) -> ast.Module:
    """The tree of a source that compiles. Nothing is compiled where there is a `finally`, which
    Python writes twice: 600 bytes with 20 of them, one in the other, would take all memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = syntax_tree(code)
        if "finally" not in code or not any(
            getattr(node, "finalbody", None) for node in ast.walk(tree)
        ):
            compile(tree, "candidate.py", "exec")  # finds `return` outside a function and the like
    return tree


def _syntax_error(detail: str) -> Verdict:
    return Verdict(status=Status.COMPILE_ERROR, reason=Reason.SYNTAX_ERROR, detail=detail)
