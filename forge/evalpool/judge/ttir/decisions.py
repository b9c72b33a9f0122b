"""Decisions of a kernel by its data, and which of their sides were taken.

A decision is a condition computed from memory where something is chosen by it: by `tl.where`, a
mask, a branch, or as a number; and a minimum or maximum, by the operand that wins. `planner` puts
a step before each that notes the sides of real lanes: those that no load has masked out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from forge.evalpool.judge.program.format import Kernel
from forge.evalpool.judge.ttir import tree
from forge.evalpool.judge.ttir.memory.storages import Group
from forge.evalpool.judge.ttir.verify import operations_of, reading_of

ANY, PARAMETER = "any", "parameter "
"""Memory that is no input's and no parameter's, and beginning of the name of a parameter's."""
TAKEN, LEFT, BOTH = 1, 2, 3
"""Bits of a decision: it was true somewhere, false somewhere."""
_BY_FIRST = (
    *("arith.select", "scf.if", "scf.condition", "cf.cond_br"),
    *("arith.extui", "arith.extsi", "arith.uitofp", "arith.sitofp"),
)
CONDITIONS = {
    **dict.fromkeys(_BY_FIRST, 0),
    "tt.load": 1,
    **dict.fromkeys(("tt.store", "tt.atomic_rmw"), 2),
}
"""Place of the condition among the operands."""
EXTREMA = frozenset(
    f"arith.{name}"
    for name in ("maximumf", "minimumf", "maxnumf", "minnumf", "maxsi", "minsi", "maxui", "minui")
)
COMPARED = frozenset({"arith.cmpf", "arith.cmpi"})
JOINED = frozenset({"arith.andi", "arith.ori", "arith.xori"})
MOVED = frozenset(
    {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.reduce"}
    | {f"arith.{name}" for name in ("extf", "truncf", "sitofp", "uitofp", "extsi", "extui")}
    | {"arith.trunci"}
)
"""Operations that keep a number, or most of it."""
WORDS = {
    "arith.select": "the condition of tl.where",
    "tt.load": "a mask of tl.load that depends on data",
    "tt.store": "a mask of tl.store that depends on data",
    "tt.atomic_rmw": "a mask of an atomic that depends on data",
    "scf.if": "the condition of if",
    "cf.cond_br": "the condition of if",
    "scf.condition": "the condition of while",
    "tt.clampf": "tl.clamp",
    **{f"arith.{name}": "tl.maximum" for name in ("maximumf", "maxnumf", "maxsi", "maxui")},
    **{f"arith.{name}": "tl.minimum" for name in ("minimumf", "minnumf", "minsi", "minui")},
}
MAX_DEPTH, MAX_CONSTANTS, MAX_OPEN = 12, 16, 32
MIN_CONSTANT, APART = 1e-3, 1e-3
"""Least size of a constant, and distance from it of values on its two sides."""


Noted: TypeAlias = "dict[tuple[str, int, int], tuple[int, Decision, frozenset[str]]]"
"""Sides that were taken, and names of the memory that decided, by kernel, line of the source and
place there, whatever the kernel is specialised for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    operation: tree.Operation
    operands: tuple[int, ...]
    """A condition, or the two values of which one wins."""
    choices: tuple[int, ...]
    """The values of which a condition chooses one: a side counts where they differ."""
    masks: tuple[int, ...]
    """Masks of the loads that its lanes come from."""
    constants: tuple[float, ...]
    """Numbers that it compares with, as elements of memory may have them; an int of integers."""
    memory: int
    """Arguments whose memory it depends on, as the bits of an integer; -1 for any."""

    def note(self, env: Sequence[Any], group: Group) -> None:
        seen = group.launch.seen
        known = seen.get(self, 0)
        if known != BOTH:
            seen[self] = known | self._sides(env)

    def words(self, *, is_taken: bool) -> str:
        """Says which side was never taken."""
        name = self.operation.name
        if len(self.operands) == 2:
            return f"one operand of {WORDS.get(name, name)} always won"
        what = WORDS.get(name, "a condition")
        return f"{what} was always {str(is_taken).lower()}: its other side was never taken"

    def _sides(self, env: Sequence[Any]) -> int:
        left, right = env[self.operands[0]], env[self.operands[-1]]
        if len(self.operands) == 1:
            right = ~left
        else:
            real = np.isfinite(left) & np.isfinite(right)
            left, right = (left > right) & real, (left < right) & real
        if self.choices:
            differs = np.asarray(env[self.choices[0]] != env[self.choices[1]])
            shape = left.shape + (1,) * (differs.ndim - left.ndim)
            left, right = left.reshape(shape) & differs, right.reshape(shape) & differs
        for mask in (env[one] for one in self.masks):
            if mask.ndim == left.ndim:
                left, right = left & mask, right & mask
        return TAKEN * bool(left.any()) | LEFT * bool(right.any())


def note_all(
    noted: Noted,
    decisions: Sequence[Decision],
    seen: dict[Decision, int],
    kernel: Kernel,
    memory: Sequence[str],
) -> None:
    """Adds what the launches of a kernel have taken. `memory`: names of its arguments'."""
    places = Counter[int]()
    for one in decisions:
        index = one.operation.index
        line = kernel.lines[index] if index < len(kernel.lines) else 0
        key = kernel.name, line, places[line]
        places[line] += 1
        if sides := seen.get(one, 0):
            known, _, names = noted.get(key, (0, one, frozenset[str]()))
            names |= {name for at, name in enumerate(memory) if one.memory >> at & 1}
            noted[key] = known | sides, one, names


def open_sides(noted: Noted) -> list[list[Any]]:
    """[line, words, constants, names of memory] of each decision that took one side alone."""
    return [
        [line, one.words(is_taken=sides == TAKEN), [*one.constants], sorted(names)]
        for (_, line, _), (sides, one, names) in sorted(noted.items(), key=lambda pair: pair[0])
        if sides != BOTH
    ][:MAX_OPEN]


class Decisions:
    def __init__(self, module: tree.Module, function: tree.Function) -> None:
        self._reading = reading_of(module, function.name)
        calls = (one for other in module.functions.values() for one in operations_of(other))
        called = {one.attributes["callee"] for one in calls if one.name == "tt.call"}
        self._is_called = function.name in called  # any argument may be of memory
        self._makers = {value: one for one in operations_of(function) for value in one.results}

    def of(self, operation: tree.Operation, block: tree.BasicBlock) -> list[Decision]:
        name, operands, kinds = operation.name, operation.operands, operation.types.operands
        at = CONDITIONS.get(name, len(operands))
        pairs: list[tuple[int, ...]] = []
        if at < len(operands) and kinds[at] in (
            tree.BOOL,
            tree.Block(tree.shape_of(kinds[at]), tree.BOOL),
        ):
            pairs = [operands[at : at + 1]]
        elif name in EXTREMA and self._is_of_data(operation):
            pairs = [operands]
        elif name == "tt.clampf":
            pairs = [(operands[0], bound) for bound in operands[1:]]
        return [
            Decision(
                operation=operation,
                operands=pair,
                choices=operands[1:] if name == "arith.select" else (),
                masks=tuple(dict.fromkeys(self._masks(pair, block))),
                constants=tuple(dict.fromkeys(self._constants(pair)))[:MAX_CONSTANTS],
                memory=memory,
            )
            for pair in pairs
            if (memory := self.memory_of(pair))
        ]

    def _is_of_data(self, operation: tree.Operation) -> bool:
        """True but for a place that is held within bounds: integers, one of which is no data."""
        element = tree.element_of(operation.types.results[0])
        is_float = isinstance(element, tree.Scalar) and element.is_float
        return is_float or all(self.memory_of((one,)) for one in operation.operands)

    def memory_of(self, values: Sequence[int]) -> int:
        """Arguments whose memory values depend on, as `Decision.memory`."""
        return -1 if self._is_called else self._reading.held(values).memory

    def _masks(self, values: Sequence[int], block: tree.BasicBlock) -> Iterator[int]:
        """Masks of the loads that lanes come from, element by element, in the same block."""
        own = {value: one for one in block.operations for value in one.results}
        shapes = {tree.shape_of(own[one].types.results[0]) for one in values if one in own}
        left, known = [*values], set[int]()
        while left:
            value = left.pop()
            one = own.get(value)
            if value in known or one is None or tree.shape_of(one.types.results[0]) not in shapes:
                continue
            known.add(value)
            if one.name == "tt.load":
                yield from one.operands[1:2]
            elif one.name.startswith(("arith.", "math.", "tt.extern")):
                left += one.operands

    def _constants(self, values: Sequence[int]) -> Iterator[float]:
        """Constants of the comparisons behind a condition, or that one of two values is."""
        if len(values) == 2:
            yield from self._compared(values, "")
            return
        left = [(values, 0)]
        while left:
            found, depth = left.pop()
            for value in found if depth < MAX_DEPTH else ():
                one = self._makers.get(value)
                if one is not None and one.name in JOINED:
                    left += [(one.operands[:1], depth + 1), (one.operands[1:], depth + 1)]
                elif one is not None and one.name in COMPARED:
                    yield from self._compared(one.operands, one.attributes["predicate"])
                elif one is not None and one.name in MOVED:
                    left.append((one.operands[:1], depth + 1))

    def _compared(self, pair: Sequence[int], predicate: str) -> Iterator[float]:
        """Numbers of an element for a comparison with a constant to have either result: equal, or
        on both sides, since an honest kernel's constant may be a rounding away. x != x is a NaN."""
        if predicate and pair[0] == pair[1]:
            yield math.nan
        for number, other in (pair, pair[::-1]):
            if (found := self._number(number)) is not None:
                for one in self._before(other, found):
                    apart = max(abs(one), MIN_CONSTANT) * APART if math.isfinite(one) else 0.0
                    is_whole, is_equal = type(one) is int, predicate[-2:] in ("eq", "ne")
                    step = 1 if is_whole else apart
                    yield from (one,) if is_equal else (one - step, one + step)

    def _number(self, value: int) -> float | None:
        """The one number that a value is everywhere."""
        one = self._makers.get(value)
        while one is not None and one.name in MOVED and not one.regions:
            one = self._makers.get(one.operands[0])
        if one is None or one.name != "arith.constant":
            return None
        found = one.attributes["value"]
        return found if isinstance(found, int | float) and not math.isnan(found) else None

    def _before(self, value: int, wanted: float) -> list[float]:
        """Numbers of an element for a value to be so much: through steps of one operand. None of a
        count."""
        found: list[float] = []
        for _ in range(MAX_DEPTH):
            found.append(wanted)
            one = self._makers.get(value)
            if one is None:
                break
            if one.name in COMPARED:
                return []
            value, name = one.operands[0] if one.operands else value, one.name
            others = [self._number(each) for each in one.operands]
            if name == "math.absf":
                found.append(-wanted)
            elif name in ("math.sqrt", "tt.precise_sqrt"):
                wanted = wanted * wanted
            elif name == "arith.mulf" and one.operands[0] == one.operands[1] and wanted > 0:
                wanted = math.sqrt(wanted)
                found.append(-wanted)
            elif len(others) == 2 and (others[0] is None) != (others[1] is None):
                is_second = others[0] is None
                number = others[1] if is_second else others[0]
                assert number is not None
                value = one.operands[0 if is_second else 1]
                if name in ("arith.addf", "arith.addi"):
                    wanted -= number
                elif name in ("arith.subf", "arith.subi"):
                    wanted = wanted + number if is_second else number - wanted
                elif name == "arith.mulf" and number:
                    wanted /= number
                elif name in ("arith.divf", "tt.precise_divf") and is_second:
                    wanted *= number
                else:
                    break
            elif name not in MOVED:
                break
        return found
