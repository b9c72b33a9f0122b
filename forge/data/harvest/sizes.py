"""Other sizes of a problem: texts in which the axes of `get_inputs` have other lengths.

Which axes are free is not in a text: `Model` ties some to its parameters. So groups of texts are
made, the freest first, and a sandbox finds the first that runs. A group has two sizes whose
axes differ in length, so that no kernel is right by chance, and larger ones up to a card's.

    [4, 4, 4, 4], axis 1 tied ─▶ [6, 4, 20, 28], other [10, 4, 28, 12], large [16, 4, 1024, 1024]
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from forge.data.harvest.closure import copied

TENSORS = frozenset({"rand", "randn", "zeros", "ones", "empty", "full", "randint"})
"""Functions of torch whose first argument, or all of them, are sizes."""
SMALL = ((6, 12, 20, 28, 10), (10, 8, 28, 12, 6))
"""Lengths of axes that were at most 8, of a text and of the other one, by their place."""
MOST_SMALL = 8
GROWTH = tuple(4**power for power in range(2, 14))
"""Factors of the elements of inputs that are tried for a card."""
MAX_LENGTH = 1 << 20
WIDER = 3
"""Factor for lengths that a wide filter fits into."""
WIDEST = 64
"""Width of parameters at a CPU's sizes, if a text has a card's."""
LARGE_ELEMENTS, LARGE_LENGTH = 1 << 17, 1 << 11
"""Product of a text's constants, and one of them, from which it is not for a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGroup:
    """A problem at two small sizes and at larger ones; some axes keep their lengths."""

    text: str
    other: str
    large: tuple[str, ...]


def replaced(text: str, definitions: str) -> str:
    """The text with definitions of its top level replaced: functions, and constants. One that it
    does not have is added before `get_inputs`. Raises SyntaxError."""
    new: dict[str, str] = {}
    for node in ast.parse(definitions).body:
        for name in _bound(node):
            before = [new[name]] if name in new and isinstance(node, ast.AugAssign) else []
            new[name] = "\n".join([*before, ast.unparse(node)])
    known = {name for node in ast.parse(text).body for name in _bound(node)}
    text = _one_a_line(text, names=new.keys())
    lines = text.split("\n")
    added = dict.fromkeys(said for name, said in new.items() if name not in known)
    extra = [*added, "", ""] if added else []
    for node in reversed(ast.parse(text).body):
        first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", ()))]) - 1
        names = _bound(node)
        if not new.keys().isdisjoint(names):
            said = [] if new.keys() >= set(names) else [ast.unparse(node)]
            said += dict.fromkeys(new[name] for name in names if name in new)
            lines[first : node.end_lineno] = "\n".join(said).split("\n")
        if "get_inputs" in names:
            lines[first:first], extra = extra, []
    return "\n".join([*extra, *lines])


def size_groups(text: str) -> list[SizeGroup]:
    """Texts at other sizes, those with the most free axes first; none if the inputs have no literal
    size."""
    tree = ast.parse(text)
    node = next(
        (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_inputs"),
        None,
    )
    if node is None:
        return []
    lines = _one_a_line(text)
    tree_of_lines = ast.parse(lines)
    constants = _constants(tree_of_lines)
    if free := _free(constants, tree_of_lines, node):
        return list(_constant_groups(text, lines, free, constants))
    shapes = [[length for _, length in axes] for axes in _axes(node)]
    rank = max(map(len, shapes), default=0)
    groups: dict[str, SizeGroup] = {}
    for free in _free_axes(rank):
        places = {place for place in free if any(len(one) > place for one in shapes)}
        if not places:
            continue
        small, other = (_resized(text, node, places, partial(_small, kind=kind)) for kind in (0, 1))
        large = tuple(
            _resized(text, node, places, partial(_grown, by=factor ** (1 / len(places))))
            for factor in GROWTH
        )
        groups.setdefault(small, SizeGroup(text=small, other=other, large=large))
    return list(groups.values())


def _one_a_line(text: str, *, names: Collection[str] | None = None) -> str:
    """The text with `a, b = 4, 8`, `a = b = 4` and `a = 4; b = 8` of its top level, if they bind
    one of some names, as assignments to one name."""
    groups: list[list[ast.stmt]] = []
    for node in ast.parse(text).body:
        if groups and node.lineno <= (groups[-1][-1].end_lineno or 0):
            groups[-1].append(node)
        else:
            groups.append([node])
    lines = text.split("\n")
    for nodes in reversed(groups):
        said = [one for node in nodes for one in _single(node)]
        bound = (name for node in nodes for name in _bound(node))
        if len(said) > 1 and (names is None or any(name in names for name in bound)):
            lines[nodes[0].lineno - 1 : nodes[-1].end_lineno] = said
    return "\n".join(lines)


def _single(node: ast.stmt) -> list[str]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(
            names
        ) == len(values):
            pairs = zip(names, values, strict=True)
            return [f"{ast.unparse(name)} = {ast.unparse(value)}" for name, value in pairs]
        case ast.Assign(targets=[_, _, *_], value=ast.Constant() as value):
            return [f"{ast.unparse(name)} = {ast.unparse(value)}" for name in node.targets]
        case _:
            return [ast.unparse(node)]


def _constants(tree: ast.Module) -> dict[str, int]:
    """Whole numbers above 1 at the top level, by name."""
    values: dict[str, int] = {}
    for one in tree.body:
        match one:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                number = _whole(value, values)
                if number is not None and number > 1:
                    values[name] = number
    return values


def _free(constants: Mapping[str, int], tree: ast.Module, node: ast.FunctionDef) -> dict[str, int]:
    """The constants that the inputs depend on, and the constructor does not."""
    fixed: set[str] = set()
    for one in tree.body:
        match one:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if name not in constants:
                    fixed |= _names(value)
            case ast.FunctionDef(name="get_inputs"):
                pass
            case _:
                fixed |= _names(one)
    return {name: constants[name] for name in constants if name in _names(node) - fixed}


def _constant_groups(
    text: str, lines: str, free: Mapping[str, int], constants: Mapping[str, int]
) -> Iterator[SizeGroup]:
    """All free constants at small lengths and at WIDER ones, then the first alone. Of a text with a
    card's sizes, which is then the large one, the widths of parameters shrink, too. `lines` is the
    text with an assignment a line."""
    is_large = max(constants.values()) > LARGE_LENGTH or _num_elements(text) > LARGE_ELEMENTS
    widths = {name: _shrunk(constants[name]) for name in constants if name not in free}
    bases = [lines]
    if is_large:
        bases.insert(0, replaced(lines, "\n".join(f"{n} = {size}" for n, size in widths.items())))
    for base in dict.fromkeys(bases):
        every = tuple(free)
        for names, factor in dict.fromkeys(((every, 1), (every, WIDER), (every[:1], 1))):
            small, other = (
                replaced(
                    base,
                    "\n".join(f"{n} = {size * factor}" for n, size in zip(names, cycle(sizes))),
                )
                for sizes in SMALL
            )
            grown = (
                "\n".join(f"{n} = {_grown(0, free[n], by=f ** (1 / len(names)))}" for n in names)
                for f in GROWTH
            )
            large = (text,) if is_large else tuple(replaced(base, one) for one in grown)
            yield SizeGroup(text=small, other=other, large=large)


def _num_elements(text: str) -> int:
    """The product of the whole numbers that its top level assigns: about that of its inputs."""
    assigned = (one.value for one in ast.parse(text).body if isinstance(one, ast.Assign))
    numbers = (
        one for value in assigned for one in ast.walk(value) if isinstance(one, ast.Constant)
    )
    return math.prod(one.value for one in numbers if type(one.value) is int and one.value > 1)


def _shrunk(width: int) -> int:
    """Halves an even width until a CPU's problem may have it, or it is odd."""
    while width > WIDEST and width % 2 == 0:
        width //= 2
    return width


def _whole(node: ast.expr, known: Mapping[str, int]) -> int | None:
    """The value of an expression of whole numbers and such constants."""
    match node:
        case ast.Constant(value=int() as value) if type(value) is int:
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=ast.Mult() | ast.FloorDiv() as op, right=right):
            one, other = _whole(left, known), _whole(right, known)
            if one is None or other is None or (isinstance(op, ast.FloorDiv) and not other):
                return None
            return one * other if isinstance(op, ast.Mult) else one // other
        case _:
            return None


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _free_axes(rank: int) -> Iterator[tuple[int, ...]]:
    """Places of axes whose lengths may change, for tensors of a rank, the freest first."""
    every = tuple(range(rank))
    yield every
    if rank > 1:
        yield tuple(place for place in every if place != 1)
        yield every[:-1]
    if rank > 2:
        yield every[2:]
        yield (0, 1)
        yield (0, *every[3:])
    yield (0,)
    if rank > 1:
        yield (1,)


def _small(place: int, length: int, *, kind: int) -> int:
    """Another length of the same order; one that was a multiple of a power of two stays one."""
    if length <= MOST_SMALL:
        return SMALL[kind][place % len(SMALL[kind])]
    unit = min(length & -length, 32)
    return length + unit * ((place + kind) % 3)


def _grown(place: int, length: int, *, by: float) -> int:
    """A length that is about `by` times as large, as a power of two."""
    return min(1 << round(max(length, 4) * by - 1).bit_length(), MAX_LENGTH)


def _resized(
    text: str, node: ast.FunctionDef, free: Collection[int], length_of: Callable[[int, int], int]
) -> str:
    made = copied(node)
    for axes in _axes(made):
        for place, (value, length) in enumerate(axes):
            if place in free and length > 1:
                value.value = length_of(place, length)
    return replaced(text, ast.unparse(made))


def _axes(node: ast.FunctionDef) -> list[list[tuple[ast.Constant, int]]]:
    """The literal lengths of the axes of each tensor that a function makes."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return [sizes for one in calls if (sizes := _sizes(one))]


def _sizes(call: ast.Call) -> list[tuple[ast.Constant, int]]:
    match call.func:
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in TENSORS:
            pass
        case _:
            return []
    values: Sequence[ast.expr] = call.args
    named = [one.value for one in call.keywords if one.arg == "size"]
    listed = [one for one in (*call.args, *named) if isinstance(one, ast.List | ast.Tuple)]
    if listed:
        values = listed[0].elts
    elif name in ("full", "randint"):
        return []
    whole = [one for one in values if isinstance(one, ast.Constant)]
    constants = [(one, one.value) for one in whole if type(one.value) is int]
    return constants if len(constants) == len(values) else []


def _bound(node: ast.stmt) -> list[str]:
    """Names that a definition or an assignment binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            targets = [target]
        case _:
            targets = []
    found = (each for target in targets for each in ast.walk(target))
    return [
        each.id for each in found if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    ]
