"""Symbols for the sizes of a traced problem, and their names (`Sizes`).

An axis of an input or a parameter has a symbol; a size that follows from these by a division has
one, too, so that a kernel computes with `out_height` and no formula. A convolution's or a pool's
numbers are read from its layer (`Layer`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._inductor.codegen import common
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import Scheduler
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, ModularIndexing
from torch.utils._sympy.printers import PythonPrinter

from forge.data.inductor.source import Window

FIRST = 9000
"""Number of the first symbol for a size that follows from others."""
SIDES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
AXES = {
    1: ("length",),
    2: ("num_rows", "num_columns"),
    3: ("batch", "length", "features"),
    4: ("batch", "channels", "height", "width"),
    5: ("batch", "channels", "depth", "height", "width"),
}
"""Names of axes of an input, by rank."""
LAYER, GIVEN, HELD, SIDE = range(4)
"""Ranks of names: a convolution's tensors and a layer's weights, inputs, parameters, and sides of a
convolution's result."""
WINDOW = {
    "KERNEL": "kernel_size", "STRIDE": "stride", "PADDING": "padding", "DILATION": "dilation",
    "MORE": "output_padding",
}  # fmt: skip
"""Attributes of such a layer, by the numbers of a window."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer with a window, under the name that forward has for it."""

    text: str
    owner: torch.nn.Module

    def number(self, kind: str, axis: int, value: int) -> str:
        """The attribute that holds a number of the window for an axis; the number if none does."""
        match held := getattr(self.owner, WINDOW[kind], None):
            case int() if held == value:
                return f"{self.text}.{WINDOW[kind]}"
            case tuple() if len(held) > axis and held[axis] == value:
                return f"{self.text}.{WINDOW[kind]}[{axis}]"
            case _:
                return str(value)


@dataclass(slots=True)
class Sizes:
    """Makes tensors whose sizes are symbols, and names all symbols."""

    env: ShapeEnv
    fake: FakeTensorMode
    taken: set[str]
    """Names that sizes may not have."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """By symbol."""
    wishes: dict[Any, tuple[int, str, str]] = field(default_factory=dict[Any, tuple[int, str, str]])
    """A rank, a name, and the tensor that comes before the name where it is taken, by symbol."""
    formulas: dict[str, str] = field(default_factory=dict[str, str])
    """Sizes that follow from others, by symbol, in their order."""
    derived: dict[Any, tuple[Any, Any]] = field(default_factory=dict[Any, tuple[Any, Any]])
    """By division: the symbol, and what it is more than the division."""
    others: set[Any] = field(default_factory=set[Any])
    """Divisions that are no size of a tensor."""
    shapes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """Shapes of all results of the graph."""
    sides: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sides of the results of convolutions, by their formula."""
    layer: Layer | None = None
    """The layer with a window that runs."""
    multiples: list[tuple[Any, int]] = field(default_factory=list[tuple[Any, int]])
    """Sizes of channels that a norm divides into so many groups."""
    windows: list[Window] = field(default_factory=list[Window])
    """Layers with a window, in the order in which they ran."""

    def symbolic(
        self, value: Any, label: str, axes: Sequence[str] | None = None, *, owner: str
    ) -> Any:
        """A fake tensor with symbolic sizes in place of a tensor, a symbol for a number. The label
        of a tensor that the model holds begins with `self.`; the owner comes before the name of a
        size where two have the same."""
        if type(value) in (int, float):
            return self._number(value, label)
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout != torch.strided:
            raise ValueError(f"{label} is {value.layout}, no plain tensor")
        names = AXES.get(value.dim(), tuple(f"size{k}" for k in range(value.dim())))
        if axes and len(axes) == len(names):
            names = [one or name for one, name in zip(axes, names, strict=True)]
        is_taps = label.startswith("self.") and value.dim() > 2
        sizes: list[Any] = []
        source = label.replace(".", "_")
        for axis, n in enumerate(value.shape):
            is_number = n < 2 or (is_taps and axis > 1 and n <= 16)
            is_layers = axes is not None and value.dim() > 1  # one axis may be that of an input
            rank = GIVEN if not label.startswith("self.") else LAYER if is_layers else HELD
            wish = (rank, names[axis], owner)
            sizes.append(int(n) if is_number else self._symbol(int(n), f"{source}_{axis}", wish))
        strides: list[Any] = [0] * len(sizes)
        step: Any = 1
        order = range(len(sizes))
        for axis in sorted(
            order, key=lambda axis: (value.stride(axis), value.size(axis) != 1, -axis)
        ):
            strides[axis] = 0 if value.stride(axis) == 0 and value.size(axis) > 1 else step
            step = step * sizes[axis]
        with self.fake:
            return torch.empty_strided(sizes, strides, dtype=value.dtype)

    def on_card(self, value: Any) -> Any:
        """The same tensor on a card."""
        if not isinstance(value, torch.Tensor):
            return value
        with self.fake:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="cuda"
            )

    def _symbol(self, length: int, name: str, wish: tuple[int, str, str]) -> Any:
        source = ConstantSource(name)
        symbol = self.env.create_symbol(
            length, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        self.wishes[symbol] = wish
        return self.env.create_symintnode(symbol, hint=length, source=source)

    def _number(self, value: float, label: str) -> Any:
        source = ConstantSource(label)
        symbol = self.env.create_unspecified_symbol(
            value, source=source, dynamic_dim=DimDynamic.DYNAMIC
        )
        make = self.env.create_symfloatnode if type(value) is float else self.env.create_symintnode
        return make(symbol, hint=value, source=source)

    def settle(self) -> None:
        """Names the symbols, those that the model has found equal by the best of their wishes."""
        groups: dict[str, list[Any]] = {}
        chosen: dict[str, str] = {}
        for symbol in self.wishes:
            first: Any = symbol
            while getattr(other := self.env.replacements.get(first), "is_Symbol", False):
                first = other
            groups.setdefault(str(first), []).append(symbol)
            chosen[str(symbol)] = str(first)
        formulas, self.formulas = self.formulas, {}
        for first, group in groups.items():
            if str(group[0]) in formulas:  # symbols of sides come last
                text = formulas[str(group[0])]
                self.formulas[first] = re.sub(r"(?<![\w.])s\d+", lambda one: chosen[one[0]], text)
        for group in sorted(groups.values(), key=lambda one: min(self.wishes[s][0] for s in one)):
            _, name, owner = min((self.wishes[one] for one in group), key=lambda one: one[0])
            self.names |= dict.fromkeys(map(str, group), self._free(name, owner))
        self.names = {str(one): self.names[str(one)] for one in self.wishes}

    def _free(self, name: str, owner: str = "") -> str:
        """A name that nothing else has."""
        options = [name, f"{owner}_{name}" if owner else "", *(f"{name}_{k}" for k in range(2, 99))]
        chosen = next(one for one in options if one.isidentifier() and one not in self.taken)
        self.taken.add(chosen)
        return chosen

    def of_windows(self, function: Any, result: Any, args: Sequence[Any]) -> Any:
        """The result of a convolution or a pool with symbols for its sides: a kernel has
        `out_height`, whatever that is."""
        if function is torch.ops.aten.convolution.default:
            x, weight, _, stride, padding, dilation, transposed, more, _ = args
            kernel = weight.shape[2:]
        elif function is torch.ops.aten.native_group_norm.default:
            if isinstance(args[4], torch.SymInt):
                self.multiples.append((args[4].node, int(args[6])))
            return result
        elif function.namespace == "forge_data":
            x, kernel, stride, padding, dilation = args
            weight, transposed, more = None, False, (0,)
        else:
            return result
        rank = len(kernel)
        if x.dim() != rank + 2:
            return result
        sides = SIDES[rank]
        channels = ("in_channels", "out_channels")[:: 1 if transposed else -1]
        self._wish(x, ("batch", "in_channels" if weight is not None else "channels", *sides))
        if weight is not None:
            self._wish(weight, channels)
        sizes = list(result.shape)
        given = dict(zip(WINDOW, (kernel, stride, padding, dilation, more), strict=True))
        numbers = [
            {kind: int(one[k % len(one)]) for kind, one in given.items()} for k in range(rank)
        ]
        texts = [
            {
                kind: self.layer.number(kind, axis, n) if self.layer else str(n)
                for kind, n in one.items()
            }
            for axis, one in enumerate(numbers)
        ]
        if self.layer is not None:
            held = "" if weight is None else f"{self.layer.text}.weight"
            self.windows.append(Window(held, numbers, texts))
        for axis, name in enumerate(sides):
            size, before = sizes[2 + axis], x.shape[2 + axis]
            if isinstance(size, torch.SymInt) and isinstance(before, torch.SymInt):
                formula = (
                    "({} - 1) * {STRIDE} - 2 * {PADDING} + {DILATION} * ({KERNEL} - 1) + {MORE} + 1"
                    if transposed
                    else "({} + 2 * {PADDING} - {DILATION} * ({KERNEL} - 1) - 1) // {STRIDE} + 1"
                )
                known, text = (formula.format(before, **one[axis]) for one in (numbers, texts))
                sizes[2 + axis] = self._side(size, name, known, text)
        return result.new_empty(sizes)

    def _wish(self, tensor: Any, names: Sequence[str]) -> None:
        """Names the axes of a convolution's or pool's tensor, if they have no better names."""
        for size, name in zip(tensor.shape, names, strict=False):
            symbol = getattr(getattr(size, "node", None), "expr", None)
            rank, _, owner = self.wishes.get(symbol, (SIDE, "", ""))
            if rank in (GIVEN, HELD):
                self.wishes[symbol] = (LAYER, name, owner)

    def _side(self, size: torch.SymInt, name: str, formula: str, text: str) -> torch.SymInt:
        """A symbol for the side of a result by its formula, which the text says as forward does."""
        hint = size.node.hint
        if hint is None or hint < 2:
            return size
        if formula not in self.sides:
            made = self._symbol(hint, f"side_{len(self.sides)}", (SIDE, f"out_{name}", ""))
            self.formulas[str(made.node.expr)] = text
            self.sides[formula] = made
        return self.sides[formula]

    def substituted(self, expr: Any) -> Any:
        """The expression with symbols in place of divisions of sizes."""
        if not isinstance(expr, sympy.Expr):
            return expr
        if expr.has(FloorDiv, CleanDiv, ModularIndexing, Max):
            for node, groups in self.multiples:
                expr = _whole(expr, node.expr, groups)
            expr = self._without_divisions(expr)
        return _factored(expr) if expr.is_Add or expr.is_Mul else expr

    def _without_divisions(self, expr: Any) -> Any:
        expr = expr.replace(
            lambda e: isinstance(e, Max) and 1 in e.args,
            lambda e: Max(*(a for a in e.args if a != 1)),
        )
        while found := [
            one
            for one in expr.atoms(FloorDiv, CleanDiv)
            if _is_size(one) and one not in self.others
        ]:
            one = min(found, key=sympy.count_ops)
            made = self._derived(one)
            if made is None:
                self.others.add(one)
            else:
                expr = expr.xreplace({one: made})
        return expr.replace(
            lambda e: isinstance(e, FloorDiv), lambda e: FloorDiv(_factored(e.args[0]), e.args[1])
        )

    def _derived(self, division: Any) -> Any:
        division, rest = _normal(division)
        if division.is_Symbol or division.is_Integer:
            return division + rest
        if division not in self.derived:
            new = self._new(division)
            if new is None:
                return None
            self.derived[division] = new
        symbol, more = self.derived[division]
        return symbol - more + rest

    def _new(self, division: Any) -> tuple[Any, Any] | None:
        """A symbol for the size that a division gives but for a constant; None if none does."""
        more, name = sympy.Integer(0), ""
        for shape in self.shapes:
            for axis, one in enumerate(shape):
                difference = sympy.expand(_plain(one) - _plain(division))
                if difference.is_Integer and not name:
                    more = difference
                    sides = SIDES.get(len(shape) - 2, ())
                    name = sides[axis - 2] if axis >= 2 and sides else f"size{axis}"
        if not name:
            return None
        value = division + more
        symbol = sympy.Symbol(f"s{FIRST + len(self.derived)}", integer=True, positive=True)
        hint = int(V.graph.sizevars.optimization_hint(value, fallback=64))
        self.env.backed_var_to_val[symbol] = sympy.Integer(hint)
        self.names[str(symbol)] = self._free(f"out_{name}")
        self.formulas[str(symbol)] = str(value)
        return symbol, more


def _whole(expr: Any, size: Any, groups: int) -> Any:
    """The expression with a size in place of `groups * (size // groups)`, of which it is a
    multiple."""
    part = sympy.Symbol("part", integer=True, positive=True)

    def is_whole(term: Any) -> bool:
        factor, rest = term.as_coeff_Mul()
        return factor.is_Integer and factor % groups == 0 and part in sympy.Mul.make_args(rest)

    made = expr.xreplace({size: groups * part})
    made = made.replace(lambda e: e.is_Mul and is_whole(e), lambda e: e / (groups * part) * size)
    return made.xreplace({part: FloorDiv(size, groups)})


@cache
def _factored(expr: Any) -> Any:
    """A constant, and one term for each product of indices, whose factor is a product of sizes."""
    indices = sorted((one for one in expr.free_symbols if not _is_size(one)), key=str)
    constant, rest = sympy.expand(expr).as_coeff_Add()
    parts = sympy.collect(rest, indices, evaluate=False)
    return sympy.Add(constant, *(key * sympy.factor(value) for key, value in parts.items()))


def _is_size(expr: Any) -> bool:
    return all(one.name.startswith("s") and one.name[1:].isdecimal() for one in expr.free_symbols)


def _normal(division: Any) -> tuple[Any, Any]:
    """A division by a number without multiples of it in its base, and what they give."""
    base, by = division.args
    if not by.is_Integer:
        return division, 0
    constant = sum((t for t in sympy.Add.make_args(base) if t.is_Integer), sympy.Integer(0))
    kept = constant % by
    return FloorDiv(base - constant + kept, by), (constant - kept) // by


def _plain(expr: Any) -> Any:
    """A size with divisions in their normal form."""
    expr = getattr(getattr(expr, "node", None), "expr", expr)
    return sympy.sympify(expr).replace(
        lambda e: isinstance(e, FloorDiv), lambda e: sum(_normal(e), sympy.Integer(0))
    )


def _expanded(dep: Any) -> Any:
    if not isinstance(dep, MemoryDep):
        return dep
    size = tuple(sympy.expand(one) for one in dep.size)
    return dataclasses.replace(dep, index=sympy.expand(dep.index), size=size)


def _is_multiple(_: Any, whole: Any, part: Any) -> bool:
    """True if the factors of each term show it. Sympy's own search for a proof takes half of a
    trace's time, and finds none that changes a kernel."""
    if whole in (part, 0):
        return True
    if isinstance(whole, int | sympy.Integer) and isinstance(part, int | sympy.Integer):
        return int(whole) % int(part) == 0
    coefficient, factors = sympy.sympify(part).as_coeff_mul()
    for term in sympy.Add.make_args(sympy.sympify(whole)):
        number, found = term.as_coeff_mul()
        if number % coefficient or Counter(factors) - Counter(found):
            return False
    return True


def substitution(stack: contextlib.ExitStack, sizes: Sizes) -> None:
    """Puts symbols for divisions into kernels and their launches until the stack is left, and
    answers Inductor's questions about sizes in less time."""
    rename, printed = common.Kernel.rename_indexing, PythonPrinter.doprint

    def rename_indexing(self: Any, index: Any) -> Any:
        if isinstance(index, list | tuple):
            return [rename_indexing(self, one) for one in index]
        made = sizes.substituted(V.graph.sizevars.simplify(index))
        if sizes.multiples:
            ranges = {name: one.length for name, one in self.range_tree_nodes.items()}
            made = V.graph.sizevars.simplify_with_ranges(made, ranges)
        return rename(self, made)

    def doprint(self: Any, expr: Any, **options: Any) -> str:
        return printed(self, sizes.substituted(expr), **options)

    fits = Scheduler.fusable_read_and_write

    def fusable(self: Any, read: Any, write: Any, **options: Any) -> bool:
        """As Inductor decides, with sums of products written in one way."""
        return fits(self, _expanded(read), _expanded(write), **options)

    for owner, name, value in (
        (SizeVarAllocator, "statically_known_multiple_of", _is_multiple),
        (Scheduler, "fusable_read_and_write", fusable),
        (common.Kernel, "rename_indexing", rename_indexing),
        (PythonPrinter, "doprint", doprint),
    ):
        stack.enter_context(mock.patch.object(owner, name, value))
