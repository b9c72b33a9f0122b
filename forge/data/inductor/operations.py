"""Torch's operations in place of Inductor's external kernels."""

from __future__ import annotations

import ast
from typing import NoReturn

from forge.data.inductor.outcome import NotRewritten, RewriteReason
from forge.data.inductor.source import dotted, literal

OPERATIONS = {
    "mm": "torch.mm",
    "bmm": "torch.bmm",
    "addmm": "torch.addmm",
    "bias_addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "addmv": "torch.addmv",
    "_int_mm": "torch._int_mm",
}
"""External kernels with a counterpart of the same arguments."""
CONVOLUTIONS = {
    (1, False): "torch.nn.functional.conv1d",
    (2, False): "torch.nn.functional.conv2d",
    (3, False): "torch.nn.functional.conv3d",
    (1, True): "torch.nn.functional.conv_transpose1d",
    (2, True): "torch.nn.functional.conv_transpose2d",
    (3, True): "torch.nn.functional.conv_transpose3d",
}
"""By number of axes, and whether transposed."""
DRAWS = ("rand", "seed", "bernoulli", "normal", "dropout")
"""Parts of the names of operations that draw random numbers."""


def unknown(node: ast.AST) -> NoReturn:
    """Refuses a statement."""
    try:
        text = ast.unparse(node)
    except (ValueError, AttributeError, RecursionError):
        text = type(node).__name__
    raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, text.splitlines()[0][:100] if text else "")


def counterpart(made: ast.Call) -> ast.Call:
    """An operation of torch that does what an external kernel does."""
    name = dotted(made.func)
    if any(part in name for part in DRAWS):
        raise NotRewritten(RewriteReason.RANDOM, name)
    owner, _, function = name.rpartition(".")
    if name.startswith("torch.ops.aten."):
        return made
    if name.startswith("aten."):
        return _renamed(made, f"torch.ops.{name}")
    if owner != "extern_kernels":
        unknown(made)
    if function == "convolution":
        return _convolution(made)
    if function == "_mm_plus_mm" and len(made.args) == 4:
        first = ast.Call(func=_name("torch.mm"), args=made.args[:2], keywords=[])
        given = [first, *made.args[2:]]
        return ast.Call(func=_name("torch.addmm"), args=given, keywords=made.keywords)
    if function not in OPERATIONS:
        raise NotRewritten(RewriteReason.UNKNOWN_OPERATION, name)
    made = _renamed(made, OPERATIONS[function])
    ones = {"alpha", "beta"}
    kept = [k for k in made.keywords if k.arg not in ones or literal(k.value, None) != 1]
    return ast.Call(func=made.func, args=made.args, keywords=kept)


def _convolution(made: ast.Call) -> ast.Call:
    given = {one.arg: one.value for one in made.keywords}
    is_transposed = literal(given.pop("transposed", None), False) is True
    stride = literal(given.get("stride"), None)
    axes = len(stride) if isinstance(stride, tuple | list) else 0
    if (axes, is_transposed) not in CONVOLUTIONS:
        raise NotRewritten(RewriteReason.UNKNOWN_OPERATION, "extern_kernels.convolution")
    usual = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
    if not is_transposed:
        given.pop("output_padding", None)
    kept: list[ast.keyword] = []
    for name in ("bias", "stride", "padding", "output_padding", "dilation", "groups"):
        value = literal(given.get(name), None)
        is_usual = name not in given or _is_usual(value, usual.get(name, 1))
        if not (is_usual or (name == "bias" and literal(given[name], 0) is None)):
            kept.append(ast.keyword(arg=name, value=given[name]))
    function = _name(CONVOLUTIONS[axes, is_transposed])
    return ast.Call(func=function, args=made.args, keywords=kept)


def _is_usual(value: object, usual: int) -> bool:
    if isinstance(value, tuple | list):
        return all(one == usual for one in value)
    return value == usual


def _renamed(made: ast.Call, name: str) -> ast.Call:
    return ast.Call(func=_name(name), args=made.args, keywords=list(made.keywords))


def _name(name: str) -> ast.expr:
    return ast.parse(name, mode="eval").body
