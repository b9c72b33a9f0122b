"""Broken variants of a correct Triton module, as models write them, for rows that repair.

Each changes one place of the text; the judge says whether it is a mistake. A variant depends on the
code and the generator alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from random import Random

from forge.data.answers import jitted, parse

OTHERS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*"}


def broken(code: str, rng: Random) -> str | None:
    """A broken variant that is Python or nearly so; None if no mistake is possible in it."""
    mistakes = list(MISTAKES)
    weights = [MISTAKES[one] for one in mistakes]
    for _ in range(8):
        (mistake,) = rng.choices(mistakes, weights)
        found = mistake(code, rng)
        if found is not None and found != code:
            return found
    return None


def wrong_operator(code: str, rng: Random) -> str | None:
    """An operation on values is another one."""
    places = [
        node
        for kernel in _kernels(code)
        for node in ast.walk(kernel)
        if isinstance(node, ast.BinOp) and type(node.op) in OTHERS and not _is_address(node)
    ]
    if not places:
        return None
    node = rng.choice(places)
    start, end = _end(code, node.left), _start(code, node.right)
    symbol = OTHERS[type(node.op)]
    return code[:start] + re.sub(r"[-+*/]", symbol, code[start:end], count=1) + code[end:]


def missing_mask(code: str, rng: Random) -> str | None:
    """A load or store has no mask."""
    found = list(re.finditer(r", mask=\w+(?:, other=[\w.\-()'\"]+)?\)", code))
    return _cut(code, rng.choice(found), ")") if found else None


def missing_argument(code: str, rng: Random) -> str | None:
    """A launch lacks an argument."""
    found = list(re.finditer(r"(\w+\[[^\n]*\]\([^\n,]+), [^\n,()]+(?=,)", code))
    return _cut(code, one := rng.choice(found), one[1]) if found else None


def misspelt_name(code: str, rng: Random) -> str | None:
    """A function of triton.language that does not exist."""
    names = sorted(set(re.findall(r"\btl\.([a-z_]{4,})\(", code)))
    if not names:
        return None
    name = rng.choice(names)
    return code.replace(f"tl.{name}(", f"tl.{name[:-1]}(", 1)


def undefined_name(code: str, rng: Random) -> str | None:
    """A kernel reads a name that nothing defines."""
    places = [
        node
        for kernel in _kernels(code)
        for node in ast.walk(kernel)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id != "tl"
        and len(node.id) > 1
    ]
    if not places:
        return None
    end = _end(code, rng.choice(places))
    return f"{code[:end]}_{code[end:]}"


def syntax_error(code: str, rng: Random) -> str | None:
    """A colon or a closing parenthesis is missing."""
    places = [one.start() for one in re.finditer(r"\)(?=:?\n)", code)]
    if not places:
        return None
    at = rng.choice(places)
    return code[:at] + code[at + 1 :]


MISTAKES = {
    wrong_operator: 5,
    missing_mask: 2,
    missing_argument: 2,
    misspelt_name: 1,
    undefined_name: 1,
    syntax_error: 1,
}
"""Relative frequencies: wrong values are what a model has to learn to see."""


def _kernels(code: str) -> Sequence[ast.FunctionDef]:
    tree = parse(code)
    return [] if tree is None else jitted(tree)


def _is_address(node: ast.BinOp) -> bool:
    """True for arithmetic of pointers and indices, by the names in it."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return any(re.search(r"ptr|off|idx|index|pid|mask|stride|BLOCK|row|col", one) for one in names)


def _cut(code: str, found: re.Match[str], by: str) -> str:
    return code[: found.start()] + by + code[found.end() :]


def _start(code: str, node: ast.expr) -> int:
    return _offset(code, node.lineno, node.col_offset)


def _end(code: str, node: ast.expr) -> int:
    return _offset(code, node.end_lineno or 0, node.end_col_offset or 0)


def _offset(code: str, line: int, column: int) -> int:
    """The place of a line and a column, which counts bytes, in the text."""
    lines = code.split("\n")
    before = sum(len(one) + 1 for one in lines[: line - 1])
    return before + len(lines[line - 1].encode()[:column].decode())
