"""Arguments of constructors and of forward as lists of expressions, in the order of parameters.

`get_init_inputs` returns positional arguments, or `[[...], {...}]` where a named one cannot be
given by position. A configuration object becomes a dict, and the constructor makes an object of it.
"""

from __future__ import annotations

import ast
import keyword
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.data.harvest.closure import TOO_DEEP, NotSelfContained, copied, globals_of
from forge.data.harvest.records import Found, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forge.data.harvest.closure import Closure

CONFIG = "SimpleNamespace"
MOCK = "_mock_config"
"""Call by which paritybench, and KernelBook, make a configuration object."""


@dataclass(slots=True, kw_only=True)
class Constructed:
    """The arguments of a constructor, and the statements that it has to begin with."""

    arguments: ast.expr
    first: list[ast.stmt] = field(default_factory=list[ast.stmt])


def constructor_call(
    method: ast.FunctionDef | None,
    given: Sequence[ast.expr],
    named: Mapping[str, ast.expr],
    *,
    config: str = "",
) -> Constructed:
    """Gives the list that `get_init_inputs` returns for these arguments.

    Args:
        config: name of a function whose result is a configuration object with its keywords as
            fields.

    Raises:
        NotSelfContained: a configuration object inside of an expression.
    """
    names = [] if method is None else [one.arg for one in method.args.args[1:]]
    first: list[ast.stmt] = []
    values = [*enumerate(given), *named.items()]
    plain: dict[int | str, ast.expr] = {}
    for place, value in values:
        parameter = place if isinstance(place, str) else _at(names, place)
        if config and _is_call(value, config):
            assert isinstance(value, ast.Call)
            is_name = parameter.isidentifier() and not keyword.iskeyword(parameter)
            if value.args or any(one.arg is None for one in value.keywords) or not is_name:
                raise NotSelfContained("configuration object")
            keys: list[ast.expr | None] = [ast.Constant(one.arg) for one in value.keywords]
            plain[place] = ast.Dict(keys=keys, values=[copied(one.value) for one in value.keywords])
            first += ast.parse(f"{parameter} = {CONFIG}(**{parameter})").body
        else:
            plain[place] = copied(value)
    for value in plain.values():
        if config and any(_is_call(one, config) for one in ast.walk(value)):
            raise NotSelfContained("configuration object")
    positions = [plain[place] for place in range(len(given))]
    rest = {name: plain[name] for name in named}
    while len(positions) < len(names) and names[len(positions)] in rest:
        positions.append(rest.pop(names[len(positions)]))
    listed = ast.List(elts=positions, ctx=ast.Load())
    if not rest:
        return Constructed(arguments=listed, first=first)
    keyed = ast.Dict(keys=[ast.Constant(name) for name in rest], values=[*rest.values()])
    return Constructed(arguments=ast.List(elts=[listed, keyed], ctx=ast.Load()), first=first)


def forward_call(
    method: ast.FunctionDef | None, given: Sequence[ast.expr], named: Mapping[str, ast.expr]
) -> ast.List:
    """Gives the list that `get_inputs` returns. Raises NotSelfContained if keywords are not a
    prefix of the parameters."""
    names = [] if method is None else [one.arg for one in method.args.args[1:]]
    positions = [copied(one) for one in given]
    rest = dict(named)
    while len(positions) < len(names) and names[len(positions)] in rest:
        positions.append(copied(rest.pop(names[len(positions)])))
    if rest:
        raise NotSelfContained("keyword arguments of forward")
    return ast.List(elts=positions, ctx=ast.Load())


def problem_text(closure: Closure, inputs: ast.expr, constructed: Constructed) -> str:
    """The problem of a class with its arguments. Raises NotSelfContained."""
    arguments, first = constructed.arguments, constructed.first
    used = globals_of(ast.Expr(arguments)) | globals_of(ast.Expr(inputs))
    closure.require(used - {"torch"})
    text = closure.text(inputs=inputs, arguments=arguments, first=first)
    return f"from types import {CONFIG}\n{text}" if first else text


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


def _at(names: Sequence[str], place: int) -> str:
    return names[place] if place < len(names) else ""


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
