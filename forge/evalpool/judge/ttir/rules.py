"""Types that each operation takes and gives: a table of what Triton's own verifier demands.

A text may come from a child that made it up, and where nothing is compiled only this asks for its
types (`parse`, `verify`). An operation that is not here has no semantics in the evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

from forge.evalpool.judge.program.dialect import EXTERN, OPERATIONS
from forge.evalpool.judge.ttir import tree
from forge.evalpool.judge.ttir.tree import BOOL, Block, Pointer, Scalar, element_of, shape_of

Types: TypeAlias = Sequence[Any]
"""Types of the tree."""
Given: TypeAlias = Mapping[str, Any]
"""Attributes."""
Rule: TypeAlias = Callable[[Types, Types, Given], bool]
I32, I64 = Scalar("i32"), Scalar("i64")

# --- operations on elements

MARKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda before, after: before.bits < after.bits,
    ">": lambda before, after: before.bits > after.bits,
    "=": lambda before, after: before.bits == after.bits,
    **dict.fromkeys(("->", "=>"), lambda before=None, after=None: True),
}
LETTERS: Mapping[str, Callable[[Any], bool]] = {
    "i": lambda one: isinstance(one, Scalar) and not one.is_float and one.name != "index",
    "n": lambda one: isinstance(one, Scalar) and not one.is_float,
    "f": lambda one: isinstance(one, Scalar) and one.is_float,
    "p": lambda one: isinstance(one, Pointer),
    **dict.fromkeys("xv", lambda one: True),
}
"""Kinds of elements; any other word is the name of a type."""


@dataclass(frozen=True, slots=True)
class Form:
    """Elements of operands and results, as `program/operations.txt` writes them."""

    operands: list[str]
    results: list[str]
    mark: str

    def inferred(self, given: Types) -> list[tree.Type]:
        """Types of results that are not printed."""
        elements: dict[str, Any] = dict(zip(self.operands, map(element_of, given), strict=False))
        elements |= {"i1": BOOL, "v": getattr(elements.get("p"), "pointee", None)}
        shape = shape_of(given[-1]) if given else ()
        return [
            sized(() if "." in one else shape, elements[one.strip(".")]) for one in self.results
        ]

    def printed(self, given: Types) -> list[tree.Type]:
        """Types of operands that are printed where those of results are not."""
        kinds = dict(zip(reversed(self.operands), reversed(given), strict=False))
        return [kinds[one] for one in dict.fromkeys(self.operands) if one[-1] != "'"]

    def fits(self, operands: Types, results: Types) -> bool:
        slots, kinds = (*self.operands, *self.results), (*operands, *results)
        bound, shapes = dict[str, tree.Type](), set[tuple[int, ...]]()
        if len(slots) != len(kinds):
            return False
        for slot, kind in zip(slots, kinds, strict=True):
            letter, element = slot.strip(".'"), element_of(kind)
            is_one = LETTERS.get(letter.lower())
            is_right = is_one(element) if is_one else str(element) == letter
            if bound.setdefault(letter, element) != element or not is_right:
                return False
            if letter == "p" and isinstance(element, Pointer):
                bound["v"] = element.pointee
            if isinstance(kind, tree.Descriptor) or ("." in slot and shape_of(kind)):
                return False
            shapes |= set() if "." in slot else {shape_of(kind)}
        ends = map(element_of, (*operands[:1], *results[:1]))
        return len(shapes) <= 1 and MARKS[self.mark](*ends)


def _forms(text: str) -> list[Form]:
    found = list[Form]()
    for one in text.replace(",", "").split("|"):
        mark = next(word for word in one.split() if word in MARKS)
        given, results = (side.split() for side in one.split(mark))
        found.append(Form(given, results, mark))
    return found


FORMS = {name: _forms(form) for name, (form, _) in OPERATIONS.items() if form}
EXTERN_FORMS = {name: _forms("|".join(forms)) for name, forms in EXTERN.items()}


def sized(shape: Sequence[int], element: Scalar | Pointer) -> tree.Type:
    """A block, or a scalar where there is no shape."""
    return Block(tuple(shape), element) if shape else element


# --- operations on blocks and memory

SHAPES: Mapping[str, Callable[[Any, Any, Given], bool]] = {
    "tt.broadcast": lambda one, to, _: (
        len(one) == len(to) and all(a in (1, b) for a, b in zip(one, to, strict=True))
    ),
    "tt.expand_dims": lambda one, to, given: (
        0 <= (at := given["axis"]) <= len(one) and to == (*one[:at], 1, *one[at:])
    ),
    "tt.trans": lambda one, to, given: (
        sorted(given["order"]) == [*range(len(one))]
        and to == tuple(one[at] for at in given["order"])
    ),
    "tt.reshape": lambda one, to, _: prod(one) == prod(to),
    "tt.join": lambda one, to, _: to == (*one, 2),
    "tt.split": lambda one, to, _: one == (*to, 2),
    "tt.cat": lambda one, to, _: to == (2 * one[0], *one[1:]),
}
"""Conditions on shapes before and after. Operands are blocks of one type, and results are blocks
of one type with the same elements."""


def _reshapes(name: str) -> Rule:
    num = {"tt.join": (2, 1), "tt.cat": (2, 1), "tt.split": (1, 2)}.get(name, (1, 1))

    def fits(operands: Types, results: Types, given: Given) -> bool:
        return (
            (len(operands), len(results)) == num
            and len({*operands}) == len({*results}) == 1
            and all(isinstance(one, Block) for one in (*operands, *results))
            and element_of(operands[0]) == element_of(results[0])
            and SHAPES[name](shape_of(operands[0]), shape_of(results[0]), given)
        )

    return fits


def _gathered(operands: Types, results: Types, given: Given) -> bool:
    source, index = operands
    axis, sizes = given["axis"], [*shape_of(source)]
    sizes[axis] = shape_of(index)[axis]
    wanted = [sized(sizes, element_of(source))]
    is_index = axis >= 0 and LETTERS["i"](element_of(index)) and shape_of(index) == tuple(sizes)
    return is_index and [*results] == wanted


def _counted(operands: Types, results: Types, _given: Given) -> bool:
    (source, *mask), (result,) = operands, results
    are_right = all(
        len(shape_of(one)) == 1 and LETTERS["i"](element_of(one)) for one in (source, result)
    )
    return are_right and mask in ([], [sized(shape_of(source), BOOL)])


def _multiplied(operands: Types, results: Types, _given: Given) -> bool:
    elements: list[Any] = [*map(element_of, operands)]
    (*batch, rows, terms), (*others, same, columns), shape = map(shape_of, operands)
    return (
        [*batch, terms] == [*others, same]
        and shape == (*batch, rows, columns)
        and elements[0].bits == elements[1].bits
        and len({one.is_float for one in elements}) == 1
        and [*results] == [operands[2]]
    )


def _described(operands: Types, results: Types, _given: Given) -> bool:
    base, *sizes, described = (*operands, *results)
    rank = len(described.block.shape)
    return base == Pointer(element_of(described)) and sizes == [I32] * rank + [I64] * rank


def _window(operands: Types, results: Types, _given: Given) -> bool:
    """A block of a descriptor, at an index for each axis; axes of size 1 may be left out."""
    described, *starts, block = (*operands, *results)
    own, element = described.block, element_of(block)
    sizes = [[size for size in shape_of(one) if size > 1] for one in (own, block)]
    is_block = isinstance(block, Block) and (own.element, sizes[0]) == (element, sizes[1])
    return is_block and starts == [I32] * len(own.shape)


def _rows(operands: Types, results: Types, _given: Given) -> bool:
    """Rows of a descriptor, from a column on."""
    described, *others = (*operands, *results)
    (num,), own = shape_of(others[0]), described.block
    wanted = [Block((num,), I32), I32, Block((num, *own.shape[1:]), own.element)]
    return own.shape[0] == 1 and others == wanted


RULES: Mapping[str, Rule] = {
    **{name: _reshapes(name) for name in SHAPES},
    "tt.fp_to_fp": lambda given, to, words: (
        "rounding" in words or not MARKS[">"](*map(element_of, (given[0], to[0])))
    ),
    "tt.extern_elementwise": lambda _, to, words: words.keys() >= {"libname", "libpath", "pure"},
    "tt.elementwise_inline_asm": lambda _, to, words: (
        prod(shape_of(to[0])) % words["packed_element"] == 0
    ),
    "tt.make_range": lambda given, to, words: (
        [*given, *to] == [Block((words["end"] - words["start"],), I32)]
    ),
    "tt.splat": lambda given, to, _: (
        isinstance(to[0], Block) and [to[0].element] == [*given] != [Scalar("index")]
    ),
    "tt.unsplat": lambda given, to, _: prod(shape_of(given[0])) == 1,
    "tt.gather": _gathered,
    "tt.histogram": _counted,
    "tt.dot": _multiplied,
    "tt.make_tensor_descriptor": _described,
    **dict.fromkeys(("tt.descriptor_load", "tt.descriptor_store", "tt.descriptor_reduce"), _window),
    **dict.fromkeys(("tt.descriptor_gather", "tt.descriptor_scatter"), _rows),
    **dict.fromkeys(
        ("tt.get_program_id", "tt.get_num_programs"), lambda given, to, _: [*given, *to] == [I32]
    ),
    "tt.print": lambda _, to, words: "asm_string" in words and not to,
    "cf.cond_br": lambda given, to, _: [*given] == [BOOL],
}
"""Conditions on types and attributes, besides those of the forms. They raise one of
`parse.MALFORMED` where something is missing."""

# --- regions


class Ends(NamedTuple):
    """Types that a region takes, and the end of its blocks."""

    arguments: Types
    name: str
    """The operation at its end."""
    types: Types
    """Types that this hands on."""
    is_implied: bool = False
    """True if that operation is not printed where it hands nothing on."""


def _if(given: Types, results: Types, operation: tree.Operation) -> list[Ends]:
    num = 2 if results else min(len(operation.regions), 2)
    ends = Ends((), "scf.yield", results, is_implied=not results)
    return [ends] * num if given == (BOOL,) else []


def _for(given: Types, results: Types, _operation: tree.Operation) -> list[Ends]:
    kind, *others = given
    ends = Ends((kind, *results), "scf.yield", results, is_implied=not results)
    return [ends] if LETTERS["n"](kind) and others == [kind, kind, *results] else []


def _while(given: Types, results: Types, _operation: tree.Operation) -> list[Ends]:
    return [Ends(given, "scf.condition", (BOOL, *results)), Ends(results, "scf.yield", given)]


def _combined(given: Types, results: Types, operation: tree.Operation) -> list[Ends]:
    elements, axis = tuple(map(element_of, given)), operation.attributes["axis"]
    shape = shape_of(given[0])
    rest = shape if "reverse" in operation.attributes else (*shape[:axis], *shape[axis + 1 :])
    wanted = [[sized(sizes, one) for one in elements] for sizes in (shape, rest)]
    are_right = 0 <= axis < len(shape) and [[*given], [*results]] == wanted
    return [Ends(elements * 2, f"{operation.name}.return", elements)] if are_right else []


def _mapped(given: Types, results: Types, operation: tree.Operation) -> list[Ends]:
    pack = min(operation.attributes["pack"], MAX_PACK)
    sides = [
        tuple(element_of(one) for one in side for _ in range(pack)) for side in (given, results)
    ]
    are_alike = len({shape_of(one) for one in (*given, *results)}) == 1
    return [Ends(sides[0], "tt.map_elementwise.return", sides[1])] if are_alike else []


MAX_PACK = 1024
"""Elements that a region of `tt.map_elementwise` gets of one operand."""
REGIONS: Mapping[str, Callable[[Types, Types, tree.Operation], list[Ends]]] = {
    "scf.if": _if,
    "scf.for": _for,
    "scf.while": _while,
    **dict.fromkeys(("tt.reduce", "tt.scan"), _combined),
    "tt.map_elementwise": _mapped,
}
"""The regions that an operation has; none where its types do not fit."""
