"""Prints trees as source of at most `WIDTH` columns, without docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

WIDTH = 100
STEP = 4
OPENING, CLOSING = "([{", ")]}"
STRING = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|['"].*""", re.DOTALL)
"""A literal as its group; or one without an end, to the end of the text."""


def print_module(groups: Sequence[Sequence[ast.stmt]], comments: Mapping[str, str]) -> str:
    """Source of groups of statements: groups, and definitions in them, two lines apart.

    `comments` are lines above functions, by name.
    """
    parts: list[str] = []
    for group in groups:
        was_plain = False
        for node in group:
            is_plain = not isinstance(node, ast.FunctionDef | ast.ClassDef)
            gap = "\n" if is_plain and was_plain else "\n\n\n"
            was_plain = is_plain
            comment = comments.get(getattr(node, "name", ""))
            above = f"# {comment}\n" if comment else ""
            parts.append((gap if parts else "") + above + "\n".join(_lines(node)))
    return "".join(parts) + "\n"


def _lines(node: ast.stmt) -> Iterator[str]:
    """The lines of a statement, none empty below a header."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.body = [x for x in one.body if not _is_text(x)] or [ast.Pass()]
    before = ""
    for line in ast.unparse(node).split("\n"):
        if line or not before.endswith(":"):
            text = _with_double_quotes(line.lstrip())
            yield from _fitted(text, len(line) - len(line.lstrip()))
        before = line


def _is_text(node: ast.stmt) -> bool:
    """True for a string that only describes."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


def _fitted(text: str, indent: int) -> list[str]:
    """The lines of a text: of a sum that brackets do not break, a line for a few terms."""
    lines = list(_wrapped(text, indent))
    name, assigned, _ = text.partition(" = ")
    if max(map(len, lines)) > WIDTH and assigned and name.isidentifier():
        node = ast.parse(text).body[0]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            terms = _filled(_terms(node.value), indent + STEP, end="")
            margin = " " * indent
            return [f"{margin}{name} = (", *terms, f"{margin})"]
    return lines


def _with_double_quotes(text: str) -> str:
    """The text with double quotes around strings that contain neither quotes nor escapes."""
    parts, begin = list[str](), 0
    for start, end in _strings(text):
        inner = text[start + 1 : end]
        if text[start] == "'" and '"' not in inner and "\\" not in inner and inner:
            parts += [text[begin:start], f'"{inner}"']
            begin = end + 1
    return "".join([*parts, text[begin:]])


def _terms(node: ast.BinOp) -> list[str]:
    """The operands of a chain of one operator, all but the first with it."""
    parts: list[str] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and type(left.op) is type(node.op):
        parts.append(ast.unparse(ast.BinOp(ast.Name("x"), left.op, left.right)).removeprefix("x "))
        left = left.left
    first = ast.unparse(ast.BinOp(left, node.op, ast.Name("x")))  # with its parentheses
    return [first.rsplit(" ", 2)[0], *reversed(parts)]


def _wrapped(text: str, indent: int) -> Iterator[str]:
    """A statement's lines: one if it fits, else broken inside its last outermost brackets."""
    margin = " " * indent
    if len(margin) + len(text) <= WIDTH or not (span := _last_brackets(text)):
        yield margin + text if text else ""
        return
    start, end = span
    parts = _split(text[start + 1 : end])
    head = [margin + text[:start]]
    if len(head[0]) >= WIDTH and text[start - 1] == "]":  # the grid of a launch
        head = list(_wrapped(text[:start], indent))
    yield from (*head[:-1], head[-1] + text[start])
    yield from _filled(parts, indent + STEP)
    yield margin + text[end:]


def _filled(parts: list[str], indent: int, *, end: str = ",") -> Iterator[str]:
    margin = " " * indent
    line = ""
    for place, part in enumerate(parts):
        is_last = place == len(parts) - 1
        piece = part if is_last else part + end
        if line and len(margin) + len(line) + 1 + len(piece) > WIDTH:
            yield margin + line
            line = ""
        if not line and len(margin) + len(piece) > WIDTH and _last_brackets(part):
            lines = list(_wrapped(part, indent))
            yield from lines[:-1]
            line = lines[-1].lstrip() + ("" if is_last else end)
            continue
        line = f"{line} {piece}" if line else piece
    if line:
        yield margin + line


def _last_brackets(text: str) -> tuple[int, int] | None:
    """Positions of the outermost brackets that close last, if something stands in them."""
    start, depth, found = 0, 0, None
    for place, char in _code(text):
        if char in OPENING:
            if depth == 0:
                start = place
            depth += 1
        elif char in CLOSING:
            depth -= 1
            if depth == 0 and place - start > 1:
                found = (start, place)
    return found


def _split(text: str) -> list[str]:
    """The parts between a text's outermost commas."""
    parts, begin, depth = list[str](), 0, 0
    for place, char in _code(text):
        if char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:].strip())
    if not parts[-1] and len(parts) == 2:
        return [parts[0] + ","]  # a tuple of one element keeps its comma
    return [part for part in parts if part]


def _code(text: str) -> Iterator[tuple[int, str]]:
    """Characters outside string literals."""
    begin = 0
    for start, end in [*_strings(text), (len(text), len(text))]:
        yield from enumerate(text[begin:start], begin)
        begin = end + 1


def _strings(text: str) -> Iterator[tuple[int, int]]:
    """Positions of the first and last quote of each string literal."""
    return ((one.start(), one.end() - 1) for one in STRING.finditer(text) if one[1])
