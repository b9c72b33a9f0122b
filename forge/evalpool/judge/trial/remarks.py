# pyright: strict, reportMatchNotExhaustive=false
"""Says what to write instead, below a message of Triton's that names no cause.

Called for a kernel that does not compile and for an exception of the host's part. The source is
read as a tree and never run.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from forge.records.problem import syntax_tree

INSTEAD = {
    "tanh": "2 * tl.sigmoid(2 * x) - 1",
    "relu": "tl.maximum(x, 0.0)",
    "silu": "x * tl.sigmoid(x)",
    "gelu": "0.5 * x * (1 + tl.erf(x * 0.70710678))",
    "square": "x * x",
    "pow": "libdevice.pow",
    "mean": "tl.sum(x, axis=0) / N",
    "var": "tl.sum(d * d, axis=0) / N of d = x - mean, which is 0 where the mask is",
    "matmul": "tl.dot",
    "len": "a constexpr parameter",
    "sum": "tl.sum along an axis of a block, or + between the parts",
    "abs": "tl.abs",
    "round": "libdevice.rint",
    "zip": "tl.static_range and indices of tuples",
    "enumerate": "tl.static_range",
}
"""Triton's way to write what it has no function for."""
SYNTAX = {
    "Break": "mask what is not wanted with tl.where, or use while with a condition",
    "Continue": "put the rest of the loop under if, or mask it with tl.where",
    "Dict": "use variables or a tuple",
    "List": "use variables or a tuple",
    "Set": "use variables or a tuple",
    "Lambda": "define a second @triton.jit function",
    "Try": "a kernel has no exceptions",
    "Raise": "a kernel has no exceptions; tl.device_assert",
    "With": "leave it out",
}
"""Words about Python that a kernel cannot have, by the node's name."""


def remark(code: str, line: int | None, message: str) -> tuple[int | None, str]:
    """Words about what to write instead, and their line; none where the message says it."""
    for pattern, answer in ANSWERS:
        if found := re.search(pattern, message):
            return (line, answer) if isinstance(answer, str) else answer(code, line, found)
    return line, ""


def _undefined(code: str, line: int | None, found: re.Match[str]) -> tuple[int | None, str]:
    """A name that is not known, or no longer."""
    name = found[1]
    if name in INSTEAD or hasattr(builtins, name):
        words = f"a kernel has no {name} of Python's"
        return line, f"{words}: use {INSTEAD[name]}" if name in INSTEAD else words
    if name in ("torch", "np", "numpy", "math", "F"):
        return line, f"a kernel has no {name}: use functions of tl"
    for set_at, kind in _inner_names(code, name, line or 0):
        return line, (
            f"{name} is set at line {set_at} alone, within a {kind}: after it the name is unknown;"
            f" set {name} before it"
        )
    return line, ""


def _inner_names(code: str, name: str, line: int) -> Iterator[tuple[int, str]]:
    """Lines before another one where a loop or branch of its function sets a name, and which."""
    kinds: dict[type[ast.stmt], str] = {ast.For: "loop", ast.While: "loop", ast.If: "branch"}
    functions = [one for one in ast.walk(_tree(code)) if isinstance(one, ast.FunctionDef)]
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or 0)]
    for block in ast.walk(around[-1]) if around else ():
        kind = kinds.get(type(block)) if isinstance(block, ast.stmt) else None
        for node in ast.walk(block) if kind else ():
            match node:
                case ast.Name(id=found, ctx=ast.Store(), lineno=at) if found == name and at < line:
                    yield at, kind or ""


def _foreign(code: str, line: int | None, found: re.Match[str]) -> tuple[int | None, str]:
    """A function of the host within a kernel, at the line of its call."""
    name = found[1].rpartition(".")[2]
    for function in ast.walk(_tree(code)):
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        for node in ast.walk(function):
            match node:
                case ast.Call(func=ast.Attribute(attr=called), lineno=at) if called == name:
                    line = at
    return line, foreign_words(name)


def foreign_words(path: str) -> str:
    """Names what a kernel has in place of a function of the host."""
    name = path.rpartition(".")[2]
    instead = f": use {INSTEAD[name]}" if name in INSTEAD else f", as tl.{name} if there is one"
    words = "a kernel calls functions of tl and of @triton.jit only, not of torch, numpy or math"
    return words + instead


def _outside(code: str, line: int | None, found: re.Match[str]) -> tuple[int | None, str]:
    """Triton's words about a function of its own are about an index, too."""
    nodes = (one for one in ast.walk(_tree(code)) if isinstance(one, ast.Subscript))
    return line, NO_ELEMENTS if any(one.lineno == line for one in nodes) else ""


def _attribute(code: str, line: int | None, found: re.Match[str]) -> tuple[int | None, str]:
    """A function that Triton's language lacks."""
    if (name := found[1]) in INSTEAD:
        return line, f"tl has no {name}: use {INSTEAD[name]}"
    return line, (
        f"tl has no {name}: write it with other functions, or take it from libdevice (from"
        " triton.language.extra import libdevice)"
    )


def _integer_pointer(code: str, line: int | None, found: re.Match[str]) -> tuple[int | None, str]:
    """An address that is no pointer: the host passes one as an integer."""
    for node in ast.walk(_tree(code)):
        if isinstance(node, ast.Attribute) and node.attr == "data_ptr":
            words = "the kernel gets an integer in place of a pointer: pass the tensor itself,"
            return node.lineno, f"{words} not its data_ptr() (it fails at line {line})"
    words = "the pointer is a number or a block of values: add offsets to a tensor's argument"
    return line, words


def _syntax(code: str, line: int | None, found: re.Match[str]) -> tuple[int | None, str]:
    words = f"a kernel cannot have Python's {found[1].lower()}"
    return line, f"{words}: {SYNTAX[found[1]]}" if found[1] in SYNTAX else words


def _tree(code: str) -> ast.AST:
    try:
        return syntax_tree(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


NO_ELEMENTS = (
    "a block has no elements to index: use tl.where(offsets == i, ...), or their addresses"
)
ANSWERS = (
    (
        r"must be a power of (2|two)",
        "each size of a block is a power of 2: triton.next_power_of_2, with lanes beyond masked",
    ),
    (
        r"arguments must be of type tl.constexpr|constexpr.* required|must be a constexpr",
        "declare the parameter as NAME: tl.constexpr",
    ),
    (
        r"Cannot access global variable (\w+)",
        "pass it as an argument, or define it at the top as tl.constexpr(value)",
    ),
    (r"NameError: (\w+) is not defined", _undefined),
    (r"Unsupported function referenced: <\S+(?: function| method)? '?([\w.]+)'?", _foreign),
    (r"module 'triton.language\S*' has no attribute '(\w+)'", _attribute),
    (r"Unsupported ptr type <.*(?:int|fp|bf)\d+.*>", _integer_pointer),
    (r"unsupported AST node type: (\w+)", _syntax),
    (r"__setitem__ is not supported|unsupported tensor index", NO_ELEMENTS),
    (r"argument must be provided outside of JIT functions", _outside),
    (r"list index out of range", "a pointer has no shape: pass its sizes as arguments"),
    (r"'tuple' object has no attribute", "pass numbers one by one, and no tuple"),
    (
        r"[Tt]ernary expression with dynamic condition",
        "choose between elements with tl.where(condition, a, b)",
    ),
    (r"(max|min) requires at least 2", "the extremum of a block is tl.max(x, axis=0), or tl.min"),
    (r"Cannot call @triton.jit'd outside", "launch it with a grid: kernel[(n,)](...)"),
    (
        r"(Value|Mask|Other) argument cannot be block type if pointer argument is not a block",
        "the pointer is one address: add a block of offsets, or reduce the value (tl.sum)",
    ),
    (
        r"unsupported operand type\(s\) for \*\*",
        "a block has no **: use x * x, or tl.exp(p * tl.log(x)) of positive x",
    ),
    (
        r"object has no attribute 'handle'",
        "a condition or a bound of a loop must be a value that the kernel computes",
    ),
    (
        r"'(int|float)' object is not subscriptable|object of type '(int|float)' has no len",
        "a grid is a tuple or a function of the constants: kernel[(n,)](...)",
    ),
)  # fmt: skip
"""Patterns of messages, and the remark on each."""
