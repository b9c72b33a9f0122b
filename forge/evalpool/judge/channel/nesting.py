# pyright: strict
"""Places of tensors in what forward returned: `(.(.-))` for `(a, (b, None))`; trees of arguments.

A caller takes a result apart as the reference gives it. Empty for a tensor, and for a list or tuple
of nothing but tensors: `Program.returned` says which. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

MAX_NESTING = 4_000
"""Characters of a nesting, which is cut there: there are 1,000 outputs at most."""


class Keywords(dict[str, Any]):
    """Arguments that forward gets by name: the last of its inputs."""


def spread(inputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call by place, and those by name."""
    is_named = bool(inputs) and isinstance(inputs[-1], Keywords)
    return (inputs[:-1], inputs[-1]) if is_named else (inputs, {})


def mapped(tree: Any, tensor: Callable[[int], Any]) -> list[Any]:
    """A tree of arguments, as `reference.subject.Describer` makes it, with other tensors."""
    kind, value = tree
    if kind == "tensor":
        return [kind, tensor(value)]
    if kind == "permuted":
        return [kind, [mapped(value[0], tensor), value[1]]]
    if kind in ("list", "tuple"):
        return [kind, [mapped(item, tensor) for item in value]]
    if kind in ("dict", "keywords"):
        return [kind, [[key, mapped(item, tensor)] for key, item in value]]
    return tree


def nesting_of(result: Any) -> str:
    found = _described(result)
    return "" if set(found[1:-1]) <= {"."} else found[:MAX_NESTING]


def parse_form(form: object) -> tuple[bool, str]:
    """(True for a list or tuple, the nesting) of a `Called.form` that an oracle sent."""
    words = str(form)
    return words != "tensor", words.removeprefix("tensor").removeprefix("list")


def _described(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return _described([*cast("dict[Any, Any]", value).values()])
    if isinstance(value, (list, tuple)):
        return f"({''.join(map(_described, cast('list[Any]', value)))})"
    return "."
