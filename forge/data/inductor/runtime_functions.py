"""Inductor's runtime functions in Triton's own words.

`translate` replaces `triton_helpers.*`, `tl_math.*` and `libdevice.*` below a node. What takes more
than an expression becomes a small jitted function of the module, from `FUNCTIONS`.
"""

from __future__ import annotations

import ast
from typing import Any

from forge.data.harvest.records import Unanswered
from forge.data.inductor.source import called, dotted, expression, named

LANGUAGE = frozenset({
    "abs", "cdiv", "ceil", "cos", "div_rn", "erf", "exp", "exp2",
    "fdiv", "floor", "fma", "log", "log2", "max", "maximum", "min",
    "minimum", "rsqrt", "sigmoid", "sin", "sqrt", "sqrt_rn", "umulhi",
})  # fmt: skip
"""Functions that `triton.language` has itself."""

LIBDEVICE = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt",
    "copysign", "cosh", "erfc", "erfcinv", "erfcx", "erfinv", "exp10", "expm1",
    "fmod", "hypot", "ilogb", "isinf", "isnan", "j0", "j1", "ldexp",
    "lgamma", "llrint", "log10", "log1p", "nearbyint", "nextafter", "norm", "normcdf",
    "normcdfinv", "pow", "rint", "round", "signbit", "sinh", "tan", "tanh",
    "tgamma", "trunc", "y0", "y1",
})  # fmt: skip
"""Functions of `triton.language.extra.libdevice`, which has them for every vendor."""

RENAMED = {"fast_tanhf": "tanh", "fast_expf": "exp", "fast_dividef": "fdiv"}

TEXTS = {
    "larger(a, b)": ["return tl.maximum(a, b)"],
    "smaller(a, b)": ["return tl.minimum(a, b)"],
    "either(a, b)": ["return a | b"],
    "times(a, b)": ["return a * b"],
    "floor_divide(a, b)": [
        "quotient = a // b",
        "has_rest = (a % b != 0) & ((a < 0) != (b < 0))",
        "return tl.where(has_rest, quotient - 1, quotient)",
    ],
    "floor_modulo(a, b)": [
        "rest = a % b",
        "return tl.where((rest != 0) & ((a < 0) != (b < 0)), rest + b, rest)",
    ],
} | {
    f"{name}_with_index(a, a_index, b, b_index)": [
        f"takes_a = (a {sign} b) | ((a != a) & (b == b))",
        "is_tie = (a == b) | ((a != a) & (b != b))",
        "takes_a = takes_a | (is_tie & (a_index < b_index))",
        "return tl.where(takes_a, a, b), tl.where(takes_a, a_index, b_index)",
    ]
    for name, sign in (("larger", ">"), ("smaller", "<"))
}
"""Bodies of jitted functions, by name and parameters."""
FUNCTIONS = {
    head.partition("(")[0]: "\n    ".join([f"@triton.jit\ndef {head}:", *lines])
    for head, lines in TEXTS.items()
}
"""Jitted functions, by name."""

LARGEST = {"max2": "tl.max", "min2": "tl.min"}
"""Reductions that Triton has. Inductor's keep NaN; a person writes these."""

REDUCTIONS = {"any": "either", "prod": "times"}
"""Reductions of one tensor: the function that joins two elements."""

TUPLES = {
    "max_with_index": ("larger_with_index", 2),
    "min_with_index": ("smaller_with_index", 2),
}
"""Reductions of several tensors: the function that joins two, and the number of tensors."""

CALLS = {
    "maximum_with_index": ("larger_with_index", 4),
    "minimum_with_index": ("smaller_with_index", 4),
    "div_floor_integer": ("floor_divide", 2),
    "remainder_integer": ("floor_modulo", 2),
}
"""Functions that keep their first arguments: our name, and their number."""

FUSED = "fma.rn.f32 $0, $1, $2, $3;"
"""Assembly of `a * b + c`, which Triton fuses itself."""

OPERATORS = {"maximum": "larger", "minimum": "smaller", "_any_combine": "either"}
"""Functions that are passed to others."""

ZERO = ast.Constant(0)

RANDOM = frozenset({
    "rand", "randn", "randint", "randint4x", "rand4x", "randn4x", "randint64", "rand_eager_kernel",
    "philox",
})  # fmt: skip


def translate(node: ast.AST) -> Any:
    """The node without Inductor's functions. Raises Unanswered."""
    return _Translator().visit(node)


class _Translator(ast.NodeTransformer):
    """Also removes masks that are None, and slices that take everything."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            match value:
                case ast.Subscript(slice=ast.Slice(lower=None, upper=None, step=None)):
                    setattr(node, name, value.value)
        return super().generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = dotted(node.func)
        owner, _, function = name.rpartition(".")
        if not owner:
            node.func = self.visit(node.func)
        node.args = [self.visit(one) for one in node.args]
        node.keywords = [self.visit(one) for one in node.keywords]
        if function in RANDOM and owner in ("tl", "triton_helpers"):
            raise Unanswered("random", name)
        match name, node.args:
            case ("tl.load", [*_, ast.Constant(None)]) | (
                "tl.store", [_, _, *_, ast.Constant(None)]
            ):  # fmt: skip
                node.args = node.args[:-1]
            case _, [ast.Constant(str(text)), _, ast.List([a, b, c])] if text.startswith(FUSED):
                return ast.BinOp(ast.BinOp(a, ast.Mult(), b), ast.Add(), c)
        if owner == "triton_helpers":
            return _helper(function, node)
        if owner in ("tl_math", "libdevice", "tl.math", "triton_helpers.libdevice"):
            return _mathematics(RENAMED.get(function, function), node)
        return node if owner else _method(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Functions that are passed to others: operators of reductions."""
        self.generic_visit(node)
        ours = OPERATORS.get(node.attr) if dotted(node.value) == "triton_helpers" else None
        return named(ours) if ours else node


def _helper(function: str, node: ast.Call) -> ast.expr:
    given = node.args
    if function in LARGEST:
        return called(LARGEST[function], given)
    if function in REDUCTIONS and len(given) == 2:
        return called("tl.reduce", [*given, named(REDUCTIONS[function])])
    if function in TUPLES and len(given) > TUPLES[function][1]:
        joined, count = TUPLES[function]
        several = ast.Tuple(elts=given[:count], ctx=ast.Load())
        return called("tl.reduce", [several, given[count], named(joined)])
    if function in CALLS and len(given) >= CALLS[function][1]:
        ours, count = CALLS[function]
        return called(ours, given[:count])
    match function, given:
        case "select_one", [value, mask, *_]:  # of a block's row, which is its last axis
            made = called("tl.sum", [called("tl.where", [mask, value, ZERO]), ast.Constant(1)])
            made.keywords = [one for one in node.keywords if one.arg == "keep_dims"]
            return made
        case "maximum" | "minimum", [first, second]:
            is_last = isinstance(first, ast.Constant)
            return called(f"tl.{function}", [second, first] if is_last else given)
        case _:
            raise Unanswered("unknown helper", f"triton_helpers.{function}")


def _mathematics(function: str, node: ast.Call) -> ast.expr:
    if function == "mul_rn":
        return ast.BinOp(left=node.args[0], op=ast.Mult(), right=node.args[1])
    if function in LANGUAGE:
        return called(f"tl.{function}", node.args)
    if function in LIBDEVICE:
        return called(f"libdevice.{function}", node.args)
    raise Unanswered("unknown helper", dotted(node.func))


def _method(node: ast.Call) -> ast.expr:
    """`libdevice.isnan(x).to(tl.int1)` is a comparison, and isinf too."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=tested, args=[value]), attr="to"), args=[kind]
        ) if dotted(kind) == "tl.int1":
            if dotted(tested) == "libdevice.isnan" and isinstance(value, ast.Name):
                return ast.Compare(left=value, ops=[ast.NotEq()], comparators=[value])
            if dotted(tested) == "libdevice.isinf":
                infinity, size = expression("float('inf')"), called("tl.abs", [value])
                return ast.Compare(left=size, ops=[ast.Eq()], comparators=[infinity])
    return node
