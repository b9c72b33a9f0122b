"""Random damage to a source: what a model writes when it is nearly right.

Used by the tests beside it. Deterministic by seed. A quarter of the mutations work on tokens and
lines (any text may come out), the rest on the syntax tree (it parses, and means something else).
"""

import ast
import random
import re
from collections.abc import Sequence

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")
_OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "<",
    "<=",
    "==",
    "@",
    "=",
    ",",
    "(",
    ")",
    "[",
    ":",
    ".",
)
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.BitAnd)
_COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)


def mutated(code: str, *, seed: int) -> str:
    """Another source: one to three changes."""
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 3)):
        change = draw.choice((_by_token, _by_line, *[_by_tree] * 6))
        code = change(code, draw)
    return code


def _by_token(code: str, draw: random.Random) -> str:
    tokens = _TOKEN.findall(code)
    if len(tokens) < 2:
        return code
    at, other = draw.randrange(len(tokens)), draw.randrange(len(tokens))
    match draw.randrange(5):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, tokens[other])
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3:
            tokens[at] = draw.choice(_OPERATORS)
        case _:
            tokens[at] = draw.choice([one for one in tokens if one.isidentifier()] or ["x"])
    return "".join(tokens)


def _by_line(code: str, draw: random.Random) -> str:
    lines = code.split("\n")
    at = draw.randrange(len(lines))
    match draw.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        case 2:
            lines = lines[: max(at, len(lines) // 2)]
        case _:
            lines[at] = lines[at][draw.randrange(3) :]
    return "\n".join(lines)


def _by_tree(code: str, draw: random.Random) -> str:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return _by_token(code, draw)
    nodes = [node for node in ast.walk(tree) if isinstance(node, _CHANGED)]
    if nodes:
        _change(draw.choice(nodes), nodes, draw)
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return code


_CHANGED = (
    ast.Constant,
    ast.Name,
    ast.BinOp,
    ast.Compare,
    ast.Call,
    ast.Attribute,
    ast.FunctionDef,
)


def _change(node: ast.AST, nodes: Sequence[ast.AST], draw: random.Random) -> None:
    match node:
        case ast.Constant(value=bool() | None | str()):
            node.value = draw.choice((True, False, None, "", 0))
        case ast.Constant(value=number):
            node.value = draw.choice((0, 1, -1, 2, number * 2, number + 1, 1 << 40, 0.5))  # pyright: ignore[reportOperatorIssue]
        case ast.Name():
            node.id = draw.choice([one.id for one in nodes if isinstance(one, ast.Name)])
        case ast.BinOp():
            node.op = draw.choice(_BINARY)()
        case ast.Compare():
            node.ops = [draw.choice(_COMPARED)() for _ in node.ops]
        case ast.Call() if node.args or node.keywords:
            (node.keywords or node.args).pop()
        case ast.Attribute():
            names = [one.attr for one in nodes if isinstance(one, ast.Attribute)]
            node.attr = draw.choice(names)
        case ast.FunctionDef() if len(node.body) > 1:
            del node.body[draw.randrange(len(node.body))]
