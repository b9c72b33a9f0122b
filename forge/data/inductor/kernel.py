"""A kernel's body in Triton's own words: without Inductor's functions (`translate`),
aliases, named constants and unused values.

Each function may change the statements that it is given.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from forge.data.harvest.records import Unanswered
from forge.data.inductor.source import (
    GeneratedKernel,
    Substituted,
    called,
    dotted,
    expression,
    free_name,
    is_call,
    named,
    names_in,
    walk,
)

EFFECTS = ("store", "atomic_", "debug_barrier", "device_print", "inline_asm", "static_assert")
"""Beginnings of the names of functions that do more than give a value."""


_PREFIXES = re.compile(
    r"\(?(\w+),\)? = tl.associative_scan\(\((\w+),\), 1, \w+\)\n"
    r"(\w+) = triton_helpers.select_one\(\1, (rbase == RBLOCK - 1, dim=-1, keep_dims=True)\)\n"
    r"(\w+) = (\w+) ([+*]) \3\n(\w+) = \6 \7 \1\n"
    r"(\w+) = tl.where\(roffset > 0, \8, \1\)\n\6 = tl.where\(roffset > 0, \5, \3\)"
)
"""Six statements of Inductor: the sums, or products, of all beginnings of a row."""


def plain(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without Inductor's functions; constexprs that its body fixes are parameters.
    Raises Unanswered for a function without a counterpart, or random numbers."""
    fixed: dict[str, int] = {}
    left: list[ast.stmt] = []
    for node in kernel.body:
        if isinstance(node, ast.For):
            _shorten_prefixes(node, kernel.body)
    for node in kernel.body:
        match translate(node):
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int(value))):
                fixed[name] = value  # `BLOCK_M : tl.constexpr = 64`
            case ast.AnnAssign(target=target, value=ast.Name() as value):
                left.append(ast.Assign(targets=[target], value=value, lineno=0))  # another name
            case ast.Expr(value=value) if is_call(value, "tl.device_assert"):
                pass
            case made:
                left.append(made)
    params = (*kernel.params, *(name for name in fixed if name not in kernel.params))
    constexprs = kernel.constexprs | fixed.keys()
    return replace(kernel, body=left, params=params, constexprs=constexprs, fixed=fixed)


def _shorten_prefixes(loop: ast.For, body: list[ast.stmt]) -> None:
    """Writes sums of beginnings as a person does: a block adds its own to what it is given, and
    gives its last one to the next block. An integer stays: its first one needs its type."""
    for place in range(len(loop.body)):
        text = "\n".join(map(ast.unparse, loop.body[place : place + 6]))
        found = _PREFIXES.fullmatch(re.sub(" # type: .*", "", text))
        start = f"{found[6]} = tl.full([XBLOCK, 1], float('nan'), tl.float32)" if found else ""
        first = next((k for k, one in enumerate(body) if ast.unparse(one) == start), None)
        if found is None or first is None:
            continue
        given, last, carried, operator, whole = found.group(2, 4, 6, 7, 9)
        function, neutral = ("cumsum", 0.0) if operator == "+" else ("cumprod", 1.0)
        text = (
            f"{whole} = {carried} {operator} tl.{function}({given}, 1)\n"
            f"{carried} = triton_helpers.select_one({whole}, {last})"
        )
        made = ast.parse(text).body
        for one in made:
            vars(one)["type_comment"] = vars(loop.body[place + 4]).get("type_comment")
        loop.body[place : place + 6] = made
        body[first] = ast.parse(start.replace("float('nan')", str(neutral))).body[0]
        taken = names_in(*body)
        names = {carried: free_name("carry", taken), whole: free_name("prefix", taken)}
        for one in walk(*body):
            if isinstance(one, ast.Name):
                one.id = names.get(one.id, one.id)


def with_used_parameters(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without the parameters that its body does not use."""
    used = names_in(*kernel.body)
    params = tuple(name for name in kernel.params if name in used)
    return replace(kernel, params=params, constexprs=kernel.constexprs & set(params))


def with_sizes_as_arguments(kernel: GeneratedKernel, sizes: dict[str, int]) -> GeneratedKernel:
    """The kernel without statements like `xnumel = 256`, where each launch passes that number."""

    def is_repeated(node: ast.stmt) -> bool:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(value))):
                return sizes.get(name) == value
            case _:
                return False

    return cleaned(replace(kernel, body=[node for node in kernel.body if not is_repeated(node)]))


def cleaned(kernel: GeneratedKernel) -> GeneratedKernel:
    """The kernel without aliases, constants with names, and unused values."""
    body, before = kernel.body, ""
    while (text := "\n".join(map(ast.unparse, body))) != before:
        before = text
        body = sweep(_inlined(body, kernel.params))
    return replace(kernel, body=body)


def sweep(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that have an effect, or whose values reach one that has."""
    needs: dict[str, set[str]] = {}
    live: set[str] = set()
    for node in walk(*body):
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr() if not _has_effect(node):
                for name in _names(node, ast.Store):
                    needs.setdefault(name, set()).update(_names(node, ast.Load))
            case ast.For(iter=read) | ast.If(test=read) | ast.While(test=read):
                live |= _names(read, ast.Load)
            case ast.stmt():
                live |= _names(node, ast.Load)
    waiting = list(live)
    while waiting:
        for name in needs.get(waiting.pop(), set()) - live:
            live.add(name)
            waiting.append(name)
    return list(_remaining(body, live))


def _remaining(body: list[ast.stmt], live: set[str]) -> Iterator[ast.stmt]:
    for node in body:
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.Expr():
                if _has_effect(node) or not live.isdisjoint(_names(node, ast.Store)):
                    yield node
            case ast.For() | ast.While() | ast.If():
                node.body = list(_remaining(node.body, live))
                node.orelse = list(_remaining(node.orelse, live))
                if node.orelse and not node.body:
                    node.body.append(ast.Pass())
                if node.body:
                    yield node
            case ast.Pass():
                pass
            case _:
                yield node


def _has_effect(node: ast.stmt) -> bool:
    calls = (one for one in walk(node) if isinstance(one, ast.Call))
    return any(dotted(one.func).rpartition(".")[2].startswith(EFFECTS) for one in calls)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        one.id for one in walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def _inlined(body: list[ast.stmt], params: tuple[str, ...]) -> list[ast.stmt]:
    """The statements without names that stand for another name or a constant; none of these stands
    for another one of them."""
    facts = _Facts.of(body, params)
    known: dict[str, ast.expr] = {}
    for name, value in facts.assignments:
        is_once = facts.stores[name] == 1 or (isinstance(value, ast.Name) and facts.is_same(name))
        if is_once and facts.may_replace(name, value) and known.keys().isdisjoint(names_in(value)):
            known[name] = value if facts.has_attributes(name) else _as_operand(value)
    inlining = _Inlining(known)
    return [one for node in body if (one := inlining.visit(node)) is not None]


class _Inlining(Substituted):
    """Replaces names, and removes the statements that gave them."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return super().visit_Name(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        is_alias = dotted(node.targets[0]) in self.known
        return None if is_alias else self.generic_visit(node)


@dataclass(frozen=True, slots=True)
class _Facts:
    """How often names are assigned, and where they are used."""

    stores: Counter[str]
    assignments: list[tuple[str, ast.expr]]
    """Names that a plain assignment gives a value, in order."""
    uses: dict[str, list[ast.AST]]
    """Parents of the uses of each name."""
    shapes: dict[str, str]
    """Shape to which a name was broadcast."""

    @classmethod
    def of(cls, body: list[ast.stmt], params: tuple[str, ...]) -> _Facts:
        """The facts of all statements."""
        facts = cls(Counter(params), [], {}, {})
        for node in walk(*body):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    facts.assignments.append((name, value))
                    if isinstance(value, ast.Call) and is_call(value, "tl.broadcast_to"):
                        facts.shapes[name] = ast.dump(value.args[1])
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                    facts.uses.setdefault(child.id, []).append(node)
                elif isinstance(child, ast.Name):
                    facts.stores[child.id] += 1
        return facts

    def is_same(self, name: str) -> bool:
        """True if a name has one value, as the index of a row in each loop over it."""
        values = [ast.dump(value) for other, value in self.assignments if other == name]
        return self.stores[name] == 1 or (self.stores[name] == len(values) and len({*values}) == 1)

    def may_replace(self, name: str, value: ast.expr) -> bool:
        """True if each use of a name may be its value instead."""
        match value:
            case ast.Name(id=other):
                return self.is_same(other)
            case ast.Call(args=[ast.Name(id=other), shape]) if is_call(value, "tl.broadcast_to"):
                is_once = self.stores[other] == 1
                return is_once and self.shapes.get(other) == ast.dump(shape)
            case ast.Call(args=[_, _, kind]) if is_call(value, "tl.full"):
                uses = self.uses.get(name, [])
                number = _as_operand(value)
                return _is_number(number) and all(_may_hold(one, dotted(kind)) for one in uses)
            case _:
                return _is_number(value) and not self.has_attributes(name)

    def has_attributes(self, name: str) -> bool:
        """True if a name is used as `name.to(...)`."""
        return any(isinstance(one, ast.Attribute) for one in self.uses.get(name, []))


def _as_operand(value: ast.expr) -> ast.expr:
    """The value as it stands in an expression."""
    match value:
        case ast.Call(args=[_, number, kind]) if is_call(value, "tl.full"):
            return _as_float(number) if dotted(kind) == "tl.float32" else number
        case ast.Call(args=[other, _]) if is_call(value, "tl.broadcast_to"):
            return other
        case _:
            return value


def _is_number(node: ast.expr) -> bool:
    """True for numbers, also negative and infinite ones."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_number(inner)
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant()]):
            return True
        case _:
            return False


def _as_float(node: ast.expr) -> ast.expr:
    match node:
        case ast.Constant(value=bool() | int() as value):
            return ast.Constant(float(value))
        case ast.UnaryOp(operand=inner):
            return ast.UnaryOp(op=node.op, operand=_as_float(inner))
        case _:
            return node


def _may_hold(parent: ast.AST, kind: str) -> bool:
    """True if a plain number means the same there as a tensor of one such number.

    A comparison takes either. `tl.maximum` makes a tensor of it. In arithmetic a float may stand,
    since Inductor computes in fp32; an integer would take the other side's width.
    """
    match parent:
        case ast.Compare(left=left, comparators=[right]):
            return not (_is_number(left) or _is_number(right))
        case ast.BinOp(left=left, right=right):
            return kind == "tl.float32" and not (_is_number(left) or _is_number(right))
        case ast.Call(args=[_, _]):
            is_chosen = dotted(parent.func) in ("tl.maximum", "tl.minimum")
            return is_chosen and kind in ("tl.float32", "tl.int32")
        case ast.Call(args=[_, first, second]) if is_call(parent, "tl.where"):
            return kind == "tl.float32" and not (_is_number(first) or _is_number(second))
        case _:
            return False


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

TUPLES = {"max_with_index": ("larger_with_index", 2), "min_with_index": ("smaller_with_index", 2)}
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
        case ast.Call(func=ast.Attribute(value=ast.BinOp(full, ast.Add(), size), attr="to")) if (
            isinstance(size, ast.Name) and ast.unparse(full) == "tl.full([], -1.0, tl.float64)"
        ):  # a size less one, for an unbiased variance
            return ast.BinOp(size, ast.Sub(), ast.Constant(1))
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=tested, args=[value]), attr="to"), args=[kind]
        ) if dotted(kind) == "tl.int1":
            if dotted(tested) == "libdevice.isnan" and isinstance(value, ast.Name):
                return ast.Compare(left=value, ops=[ast.NotEq()], comparators=[value])
            if dotted(tested) == "libdevice.isinf":
                infinity, size = expression("float('inf')"), called("tl.abs", [value])
                return ast.Compare(left=size, ops=[ast.Eq()], comparators=[infinity])
    return node
