"""Arguments of constructors and of forward as lists of expressions, in the order of parameters.

`get_init_inputs` returns positional arguments, or `[[...], {...}]` where a named one cannot be
given by position. A configuration object becomes a dict, and the constructor makes an object of it.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forge.data.harvest.closure import TOO_DEEP, Closure, NotSelfContained, copied, globals_of
from forge.data.harvest.records import Found, Rejected

CONFIG = "SimpleNamespace"
MOCK = "_mock_config"
"""Call by which paritybench, and KernelBook, make a configuration object."""


Constructed = tuple[ast.expr, list[ast.stmt]]
"""The arguments of a constructor, and the statements that it has to begin with."""


def constructor_call(
    method: ast.FunctionDef | None,
    given: Sequence[ast.expr],
    named: Mapping[str, ast.expr],
    *,
    config: str = "",
) -> Constructed:
    """The list that `get_init_inputs` returns for these arguments; `config` names a function whose
    result is a configuration object with its keywords as fields. Raises NotSelfContained for such
    an object inside of an expression."""
    names = _parameters(method)
    first: list[ast.stmt] = []
    plain: dict[int | str, ast.expr] = {}
    for place, value in [*enumerate(given), *named.items()]:
        plain[place] = copied(value)
        if config and _is_call(value, config):
            assert isinstance(value, ast.Call)
            parameter = place if isinstance(place, str) else (*names, *[""] * len(given))[place]
            is_name = parameter.isidentifier() and not keyword.iskeyword(parameter)
            if value.args or any(one.arg is None for one in value.keywords) or not is_name:
                raise NotSelfContained("configuration object")
            keys: list[ast.expr | None] = [ast.Constant(one.arg) for one in value.keywords]
            plain[place] = ast.Dict(keys=keys, values=[copied(one.value) for one in value.keywords])
            first += ast.parse(f"{parameter} = {CONFIG}(**{parameter})").body
    if config and any(_is_call(one, config) for value in plain.values() for one in ast.walk(value)):
        raise NotSelfContained("configuration object")
    by_name = {name: plain[name] for name in named}
    listed, rest = _by_position(names, [plain[place] for place in range(len(given))], by_name)
    if not rest:
        return listed, first
    keyed = ast.Dict(keys=[ast.Constant(name) for name in rest], values=[*rest.values()])
    return ast.List(elts=[listed, keyed], ctx=ast.Load()), first


def forward_call(
    method: ast.FunctionDef | None, given: Sequence[ast.expr], named: Mapping[str, ast.expr]
) -> ast.List:
    """Gives the list that `get_inputs` returns. Raises NotSelfContained if keywords are not a
    prefix of the parameters."""
    by_name = {name: copied(one) for name, one in named.items()}
    listed, rest = _by_position(_parameters(method), [copied(one) for one in given], by_name)
    if rest:
        raise NotSelfContained("keyword arguments of forward")
    return listed


def _parameters(method: ast.FunctionDef | None) -> list[str]:
    return [] if method is None else [one.arg for one in method.args.args[1:]]


def _by_position(
    names: Sequence[str], positions: list[ast.expr], named: dict[str, ast.expr]
) -> tuple[ast.List, dict[str, ast.expr]]:
    """Arguments by position, with those named ones that follow them; and the rest."""
    while len(positions) < len(names) and names[len(positions)] in named:
        positions.append(named.pop(names[len(positions)]))
    return ast.List(elts=positions, ctx=ast.Load()), named


def problem_text(closure: Closure, inputs: ast.expr, constructed: Constructed) -> str:
    """The problem of a class with its arguments. Raises NotSelfContained."""
    arguments, first = constructed
    used = globals_of(ast.Expr(arguments)) | globals_of(ast.Expr(inputs))
    closure.require(used - {"torch"})
    text = closure.text(inputs=inputs, arguments=arguments, first=first)
    return f"from types import {CONFIG}\n{text}" if first else text


Given = tuple[Sequence[ast.expr], Mapping[str, ast.expr]]
"""Arguments by position and by name."""


def case_text(closure: Closure, *, made: Given, called: Given) -> str:
    """The problem of a class with arguments of its constructor and of forward, as paritybench has
    them. Raises NotSelfContained."""
    inputs = forward_call(closure.method("forward"), *called)
    constructed = constructor_call(closure.method("__init__"), *made, config=MOCK)
    return problem_text(closure, inputs, constructed)


def tried(make: Callable[..., Found], *args: Any, origin: str, kind: str) -> Found | Rejected:
    """The problem that a function makes of a candidate, or why it is none."""
    try:
        return make(*args, origin=origin, kind=kind)
    except NotSelfContained as error:
        return Rejected(origin=origin, kind=kind, reason=str(error), detail=error.detail)
    except RecursionError:
        return Rejected(origin=origin, kind=kind, reason=TOO_DEEP)
    except (SyntaxError, ValueError) as error:  # as of a number too long to write
        return Rejected(origin=origin, kind=kind, reason="cannot be written", detail=str(error))


def level_of(tree: ast.Module) -> int:
    """1 for one operation, 2 for a few, 3 for a model: by the calls and operators of all
    `forward` methods and functions."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in (
            "__init__", "get_inputs", "get_init_inputs",
        ):  # fmt: skip
            counted = (ast.Call, ast.BinOp, ast.UnaryOp)
            count += sum(isinstance(one, counted) for one in ast.walk(node))
    return 1 if count <= 1 else 2 if count <= 8 else 3


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
