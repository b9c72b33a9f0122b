"""Inductor's runtime functions in Triton's own words.

`translate` replaces `triton_helpers.*`, `tl_math.*` and `libdevice.*` below a node. What takes more
than an expression becomes a small jitted function of the module, from `FUNCTIONS`.
"""

from __future__ import annotations

import ast

from forge.data.inductor.source import NotRewritten, RewriteReason, dotted, named

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

FUNCTIONS = {
    "larger": """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b)
""",
    "smaller": """
@triton.jit
def smaller(a, b):
    return tl.minimum(a, b)
""",
    "either": """
@triton.jit
def either(a, b):
    return a | b
""",
    "times": """
@triton.jit
def times(a, b):
    return a * b
""",
    "larger_with_index": """
@triton.jit
def larger_with_index(a, a_index, b, b_index):
    takes_a = (a > b) | ((a != a) & (b == b))
    is_tie = (a == b) | ((a != a) & (b != b))
    takes_a = takes_a | (is_tie & (a_index < b_index))
    return tl.where(takes_a, a, b), tl.where(takes_a, a_index, b_index)
""",
    "smaller_with_index": """
@triton.jit
def smaller_with_index(a, a_index, b, b_index):
    takes_a = (a < b) | ((a != a) & (b == b))
    is_tie = (a == b) | ((a != a) & (b != b))
    takes_a = takes_a | (is_tie & (a_index < b_index))
    return tl.where(takes_a, a, b), tl.where(takes_a, a_index, b_index)
""",
    "floor_divide": """
@triton.jit
def floor_divide(a, b):
    quotient = a // b
    has_rest = (a % b != 0) & ((a < 0) != (b < 0))
    return tl.where(has_rest, quotient - 1, quotient)
""",
    "floor_modulo": """
@triton.jit
def floor_modulo(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((a < 0) != (b < 0)), rest + b, rest)
""",
    "welford_step": """
@triton.jit
def welford_step(value, mean, m2, count):
    delta = value - mean
    count = count + 1
    mean = mean + delta / count
    return mean, m2 + delta * (value - mean), count
""",
    "welford_merge": """
@triton.jit
def welford_merge(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    delta = tl.where(mean_a == mean_b, 0.0, mean_b - mean_a)
    count = count_a + count_b
    share_b = tl.where(count == 0.0, 0.0, count_b / count)
    mean = mean_a + delta * share_b
    return mean, m2_a + m2_b + delta * delta * count_a * share_b, count
""",
    "softmax_merge": """
@triton.jit
def softmax_merge(max_a, sum_a, max_b, sum_b):
    largest = tl.maximum(max_a, max_b)
    is_empty = largest == float('-inf')
    scale_a = tl.where(is_empty, 1.0, tl.exp(max_a - largest))
    scale_b = tl.where(is_empty, 1.0, tl.exp(max_b - largest))
    return largest, sum_a * scale_a + sum_b * scale_b
""",
}
"""Jitted functions, by name."""

LARGEST = {"max2": "tl.max", "min2": "tl.min"}
"""Reductions that Triton has. Inductor's keep NaN; a person writes these."""

REDUCTIONS = {"any": "either", "prod": "times"}
"""Reductions of one tensor: the function that joins two elements."""

TUPLES = {
    "max_with_index": ("larger_with_index", 2),
    "min_with_index": ("smaller_with_index", 2),
    "welford": ("welford_merge", 3),
    "online_softmax_reduce": ("softmax_merge", 2),
}
"""Reductions of several tensors: the function that joins two, and the number of tensors."""

CALLS = {
    "maximum_with_index": ("larger_with_index", 4),
    "minimum_with_index": ("smaller_with_index", 4),
    "div_floor_integer": ("floor_divide", 2),
    "remainder_integer": ("floor_modulo", 2),
    "welford_reduce": ("welford_step", 4),
    "welford_combine": ("welford_merge", 6),
    "online_softmax_combine_with_sum": ("softmax_merge", 4),
}
"""Functions that keep their first arguments: our name, and their number."""

FUSED = "fma.rn.f32 $0, $1, $2, $3;"
"""Assembly of `a * b + c`, which Triton fuses itself."""

MASKS = {"tl.load": 1, "tl.store": 2}
"""Places of the masks of functions."""

RANDOM = frozenset({
    "rand", "randn", "randint", "randint4x", "rand4x", "randn4x", "randint64", "rand_eager_kernel",
    "philox",
})  # fmt: skip


def translate(node: ast.AST) -> ast.AST:
    """The node without Inductor's functions. Raises NotRewritten."""
    return _Translator().visit(node)


class _Translator(ast.NodeTransformer):
    """Also removes masks that are None, and slices that take everything."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if type(value) is ast.Subscript and _takes_all(value.slice):
                setattr(node, name, value.value)
        return super().generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = dotted(node.func)
        owner, _, function = name.rpartition(".")
        if not owner:
            node.func = self.visit(node.func)
        node.args = [self.visit(one) for one in node.args]
        node.keywords = [self.visit(one) for one in node.keywords]
        if name in MASKS and len(node.args) == MASKS[name] + 1 and _is_none(node.args[-1]):
            node.args.pop()
        if function in RANDOM and owner in ("tl", "triton_helpers"):
            raise NotRewritten(RewriteReason.RANDOM, name)
        match node:
            case ast.Call(args=[ast.Constant(value=str(text)), _, ast.List(elts=[a, b, c])]) if (
                function == "inline_asm_elementwise" and text.startswith(FUSED)
            ):
                return ast.BinOp(ast.BinOp(a, ast.Mult(), b), ast.Add(), c)
            case _:
                pass
        match owner:
            case "triton_helpers":
                return _helper(function, node)
            case "tl_math" | "libdevice" | "tl.math" | "triton_helpers.libdevice":
                return _mathematics(function, node)
            case "":
                return _method(node)
            case _:
                return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Functions that are passed to others: operators of reductions."""
        self.generic_visit(node)
        if dotted(node.value) == "triton_helpers":
            given = {"maximum": "larger", "minimum": "smaller", "_any_combine": "either"}
            if node.attr in given:
                return ast.Name(id=given[node.attr], ctx=ast.Load())
        return node


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _takes_all(node: ast.expr) -> bool:
    """True for the slice in `x[:]`."""
    return isinstance(node, ast.Slice) and not (node.lower or node.upper or node.step)


def _helper(function: str, node: ast.Call) -> ast.expr:
    given = node.args
    if function in LARGEST:
        return _call(LARGEST[function], given)
    if function in REDUCTIONS and len(given) == 2:
        return _call("tl.reduce", [*given, _name(REDUCTIONS[function])])
    if function in TUPLES and len(given) > TUPLES[function][1]:
        joined, count = TUPLES[function]
        several = ast.Tuple(elts=given[:count], ctx=ast.Load())
        return _call("tl.reduce", [several, given[count], _name(joined)])
    if function in CALLS and len(given) >= CALLS[function][1]:
        ours, count = CALLS[function]
        return _call(ours, given[:count])
    match function, given:
        case "online_softmax_combine", [most, total, value, *_]:
            return _call("softmax_merge", [most, total, value, ast.Constant(1.0)])
        case "select_one", [value, mask, *_]:  # of a block's row, which is its last axis
            chosen = _call("tl.where", [mask, value, ast.Constant(0)])
            kept = [one for one in node.keywords if one.arg == "keep_dims"]
            return ast.Call(func=_name("tl.sum"), args=[chosen, ast.Constant(1)], keywords=kept)
        case "promote_to_tensor", [ast.Call() as reduced] if _is_reduction(reduced):
            kept = ast.keyword(arg="keep_dims", value=ast.Constant(True))
            return ast.Call(func=reduced.func, args=reduced.args, keywords=[kept])
        case "promote_to_tensor", [value]:
            zeros = ast.parse("tl.zeros([1], tl.int1)", mode="eval").body
            return ast.BinOp(left=value, op=ast.Add(), right=zeros)
        case "maximum" | "minimum", [_, _]:
            is_first = isinstance(given[0], ast.Constant)
            return _call(f"tl.{function}", given[::-1] if is_first else given)
        case "exp", [value, *_]:
            return _call("tl.exp", [value])
        case "device_assert_then", [_, _, value]:
            return value
        case "constexpr_next_power_of_2", [value]:
            return _call("triton.next_power_of_2", [value])
        case _:
            raise NotRewritten(RewriteReason.UNKNOWN_HELPER, f"triton_helpers.{function}")


def _mathematics(function: str, node: ast.Call) -> ast.expr:
    function = RENAMED.get(function, function)
    if function == "mul_rn":
        return ast.BinOp(left=node.args[0], op=ast.Mult(), right=node.args[1])
    if function in LANGUAGE:
        return _call(f"tl.{function}", node.args)
    if function in LIBDEVICE:
        return _call(f"libdevice.{function}", node.args)
    raise NotRewritten(RewriteReason.UNKNOWN_HELPER, dotted(node.func))


def _method(node: ast.Call) -> ast.expr:
    """`libdevice.isnan(x).to(tl.int1)` is a comparison, and isinf too."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=tested, args=[value]), attr="to"),
            args=[kind],
        ) if dotted(kind) == "tl.int1":
            pass
        case _:
            return node
    match dotted(tested):
        case "libdevice.isnan" if isinstance(value, ast.Name):
            return ast.Compare(left=value, ops=[ast.NotEq()], comparators=[value])
        case "libdevice.isinf":
            infinity = ast.parse("float('inf')", mode="eval").body
            size = _call("tl.abs", [value])
            return ast.Compare(left=size, ops=[ast.Eq()], comparators=[infinity])
        case _:
            return node


def _is_reduction(node: ast.Call) -> bool:
    return dotted(node.func) in ("tl.sum", "tl.max", "tl.min", "tl.reduce") and not node.keywords


def _call(name: str, given: list[ast.expr]) -> ast.Call:
    return ast.Call(func=_name(name), args=given, keywords=[])


def _name(name: str) -> ast.expr:
    return named(name)
