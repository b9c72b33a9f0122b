"""Integers that hold the bits of a float, made as wide as a float64's: a step of `program`.

Triton sorts by exclusive ors of bits, and has `atomic_max` of floats by that of integers; kernels
take signs, magnitudes and exponents from bits, and make powers of two. The integers that a bit cast
of a widened float reaches, by operations that read whole numbers, their order or their fields,
become `i64`, and constants among them the same fields of a float64. A shift that takes out a sign
or an exponent, or puts one in, is where these integers end. Anything else (other shifts, sums with
constants, loops, memory of integers) has no wide form.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.grammar.parser import parse
from forge.evalpool.judge.ttir.scan import InvalidModule
from forge.evalpool.judge.ttir.tree import (
    Block,
    Function,
    Operation,
    Pointer,
    Scalar,
    Type,
    element_of,
)
from forge.evalpool.judge.ttir.verify import operations_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MANTISSA = {"f16": 10, "bf16": 7, "f32": 23}
"""Bits of the mantissa of each float type."""
WHOLE = frozenset(
    {
        *("arith.xori", "arith.andi", "arith.ori", "arith.addi", "arith.subi", "arith.select"),
        *("arith.cmpi", "tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape"),
        *("tt.trans", "tt.join", "tt.cat", "tt.split", "tt.load", "tt.store", "tt.atomic_rmw"),
        "tt.atomic_cas",
    }
)
"""Operations whose integers of one type are all bits of floats, if one of them is."""
ATOMICS = frozenset({"max", "min", "umax", "umin", "exch", "xor"})
SHIFTS = frozenset({"arith.shrui", "arith.shrsi", "arith.shli"})
REGIONS = frozenset({"tt.reduce", "tt.scan"})
CAST = re.compile(r"bitcast .*f(?:16|32)\b")
OPERAND = re.compile(r"%[\w$.\-]+(?:#\d+)?")


class NoWideForm(Exception):
    """Something of a text has no wide form.

    `place`: number of the operation in the text; -1 where unknown.
    """

    def __init__(self, words: str, place: int = -1) -> None:
        super().__init__(words)
        self.words, self.place = words, place


def widened_bits(text: str, elements: frozenset[str]) -> tuple[str, tuple[int, ...]]:
    """The text with the bits of widened floats as `i64`, and for each operation that is added the
    number of the one behind it. Raises NoWideForm."""
    if CAST.search(text) is None:
        return text, ()
    lines = text.split("\n")
    added: list[int] = []
    try:
        functions = parse(text).functions.values()
    except InvalidModule as error:
        raise NoWideForm(str(error)) from error
    for function in functions:
        _Bits(function, elements, lines, added).rewrite()
    return "\n".join(lines), tuple(sorted(added))


def _base(kind: Type) -> str:
    """Type of the numbers of a value, or of those that it points to."""
    element = element_of(kind)
    return str(element_of(element.pointee) if isinstance(element, Pointer) else element)


class _Bits:
    """The values of one function that hold bits."""

    def __init__(
        self, function: Function, elements: frozenset[str], lines: list[str], added: list[int]
    ) -> None:
        self.elements, self.lines, self.added = elements, lines, added
        self.operations = list(operations_of(function))
        self.kinds: dict[int, Type] = {}
        self.near = defaultdict[int, list[Operation]](list)
        """Operations that make or read a value."""
        self.made: dict[int, Operation] = {}
        self.held = set[int]()
        self.rows: list[str] = []
        """Lines in place of the current one."""
        self.num_added = 0
        for one in self.operations:
            values = [*zip(one.operands, one.types.operands, strict=True)]
            values += zip(one.results, one.types.results, strict=True)
            self.kinds |= dict(values)
            self.made |= dict.fromkeys(one.results, one)
            group = [value for value, _ in values]
            if one.name in REGIONS:
                (block,) = one.regions[0].blocks
                end = block.operations[-1]
                group += [*block.arguments, *end.operands]
                self.kinds |= dict(zip(end.operands, end.types.operands, strict=True))
                self.made |= dict.fromkeys(block.arguments, one)
            for value in dict.fromkeys(group):
                self.near[value].append(one)

    def rewrite(self) -> None:
        """Rewrites the lines of operations that have to do with bits."""
        seeds = [pair for one in self.operations for pair in self._seed(one)]
        if not seeds:
            return
        floats = {name for _, name in seeds}
        if len(floats) > 1:
            raise NoWideForm("bits of several types of floats", self.made[seeds[0][0]].index)
        (self.float,) = floats
        self.integer = f"i{Scalar(self.float).bits}"
        self.fields = _fields(self.float)
        self._hold(value for value, _ in seeds)
        for one in self.operations:
            if not self.held.isdisjoint((*one.operands, *one.results)):
                self._rewrite(one)

    def _seed(self, one: Operation) -> Iterable[tuple[int, str]]:
        """The integers of a bit cast from or to a widened float, with its type."""
        if one.name not in ("tt.bitcast", "arith.bitcast"):
            return
        pairs = [(one.operands[0], one.types.operands[0]), (one.results[0], one.types.results[0])]
        for (_, kind), (value, other) in (pairs, pairs[::-1]):
            name = _base(kind)
            if name in self.elements and _base(other) != name:
                if _base(other) != f"i{Scalar(name).bits}":
                    raise NoWideForm("bits of a float", one.index)
                yield value, name

    def _hold(self, values: Iterable[int]) -> None:
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in self.held:
                continue
            self.held.add(value)
            if value not in self.made:
                raise NoWideForm(
                    "bits of a float in an argument or a loop", self.near[value][0].index
                )
            for one in self.near[value]:
                waiting += self._tied(one, value)

    def _tied(self, one: Operation, value: int) -> Iterable[int]:
        """Values that hold bits if `value`, which an operation makes or reads, holds them."""
        operands, results = one.operands, one.results
        if one.name in WHOLE and not (
            one.name == "tt.atomic_rmw" and one.attributes["operation"] not in ATOMICS
        ):
            return self._integers((*operands, *results))
        match one.name:
            case "tt.bitcast" | "arith.bitcast":
                return ()
            case "tt.addptr" if value != operands[1]:
                return (operands[0], results[0])
            case "arith.shrui" | "arith.shrsi" if self._constant(operands[1]) == self._sign:
                return operands[:1]
            case "arith.shrui" | "arith.shrsi" if self._is_exponent(one) and value == operands[0]:
                return ()
            case "arith.shli" if self._is_exponent(one) and value == results[0]:
                return ()
            case "arith.extsi" if _base(one.types.operands[0]) == "i1":
                return ()
            case "tt.reduce" | "tt.scan":
                (block,) = one.regions[0].blocks
                inner = (*block.arguments, *block.operations[-1].operands)
                return self._integers((*operands, *results, *inner))
            case "tt.reduce.return" | "tt.scan.return":
                return ()
            case _:
                raise NoWideForm(f"bits of a float in {one.name}", one.index)

    def _is_exponent(self, shift: Operation) -> bool:
        """True for a shift by the size of the mantissa."""
        return self._constant(shift.operands[1]) == MANTISSA[self.float]

    @property
    def _sign(self) -> int:
        return Scalar(self.float).bits - 1

    def _constant(self, value: int) -> int | None:
        """The number of a constant, signed; None for other values."""
        maker = self.made.get(value)
        if maker is None or maker.name != "arith.constant":
            return None
        number = maker.attributes["value"]
        if not isinstance(number, int):
            raise NoWideForm("bits of a float and a table", maker.index)
        return number

    def _integers(self, values: Iterable[int]) -> list[int]:
        """Integers among values that are as wide as the float, without constants."""
        found = [one for one in values if _base(self.kinds[one]) == self.integer]
        return [one for one in found if self._constant(one) is None]

    def _rewrite(self, one: Operation) -> None:
        place = one.line - 1
        if one.name in REGIONS:
            (block,) = one.regions[0].blocks
            self._retype(place + 1)
            self._retype(block.operations[-1].line)
            return
        if one.name == "tt.addptr":
            pointer = f"!tt.ptr<{self.integer}>"
            self.lines[place] = self.lines[place].replace(pointer, "!tt.ptr<i64>")
            return
        self.rows = list[str]()
        if one.name in SHIFTS:
            self._shift(one)
        else:
            head, equals, rest = self.lines[place].rpartition(" = ")
            values = iter(one.operands)
            rest = OPERAND.sub(lambda found: self._operand(one, next(values), found[0]), rest)
            self.lines[place] = head + equals + rest
            self._retype(place)
            self.rows.append(self.lines[place])
        self.lines[place] = "\n".join(self.rows)
        self.added += [one.index] * (len(self.rows) - 1)

    def _retype(self, place: int) -> None:
        line = self.lines[place]
        start = 0 if line.lstrip().startswith("^") else line.rindex(" : ")
        pattern = rf"(?:(?<=\dx)|(?<![\w.$%]))({self.integer})\b"
        self.lines[place] = line[:start] + re.sub(pattern, "i64", line[start:])

    def _operand(self, one: Operation, value: int, name: str) -> str:
        """Name of an operand; a constant among bits is added in its wide form."""
        kind = self.kinds[value]
        number = self._constant(value) if _base(kind) == self.integer else None
        if number is None:
            return name
        wide = self.fields.get(number % (1 << Scalar(self.float).bits))
        if wide is None or (one.name in ("arith.addi", "arith.subi") and number):
            raise NoWideForm(f"bits of a float and {number}", one.index)
        return self._add(f"arith.constant {_literal(wide, kind)}", self._wide(kind))

    def _wide(self, kind: Type) -> str:
        return re.sub(rf"\b{self.integer}\b|(?<=x){self.integer}\b", "i64", str(kind))

    def _add(self, text: str, kind: str) -> str:
        """Name of the result of a new operation before the current one."""
        name = f"%bits_{self.num_added}"
        self.num_added += 1
        self.rows.append(f"    {name} = {text} : {kind}")
        return name

    def _shift(self, one: Operation) -> None:
        """A sign or an exponent as an integer of its own size, or an exponent among bits."""
        line = self.lines[one.line - 1]
        name, _, rest = line.strip().partition(" = ")
        kind = one.types.results[0]
        wide, value = self._wide(kind), OPERAND.findall(rest)[0]

        def step(value: str, operation: str, number: int) -> str:
            constant = self._add(f"arith.constant {_literal(number, kind)}", wide)
            return self._add(f"{operation} {value}, {constant}", wide)

        exponents = Scalar(self.float).bits - 1 - MANTISSA[self.float]
        bias = (1 << 10) - (1 << (exponents - 1))
        if self._constant(one.operands[1]) == self._sign:
            last = step(value, one.name, 63)
        elif one.name == "arith.shli":
            value = self._add(f"arith.extsi {value}", f"{kind} to {wide}")
            uses = {use.name for use in self.near[one.results[0]] if use is not one}
            if not uses & {"arith.addi", "arith.subi"}:  # a whole number, not a change of one
                value = step(value, "arith.addi", bias)
            last = step(value, one.name, 52)
        else:
            sign = step(step(value, one.name, 63), "arith.shli", exponents)
            value = step(step(value, "arith.shrui", 52), "arith.andi", 2047)
            value = step(step(value, "arith.subi", bias), "arith.maxsi", 0)
            value = step(value, "arith.minsi", (1 << exponents) - 1)
            last = self._add(f"arith.ori {value}, {sign}", wide)
        if one.results[0] not in self.held:
            last = self._add(f"arith.trunci {last}", f"{wide} to {kind}")
        self.rows[-1] = self.rows[-1].replace(last, name, 1)


def _literal(number: int, kind: Type) -> str:
    return f"dense<{number}>" if isinstance(kind, Block) else str(number)


def _fields(name: str) -> dict[int, int]:
    """Constants that mean a field of a float or a power of two, as signed ones of a float64."""

    def of(bits: int, mantissa: int) -> list[int]:
        sign, low = 1 << (bits - 1), (1 << mantissa) - 1
        exponent = sign - 1 - low
        one = exponent >> 1 & ~low
        powers = [one + power * (low + 1) for power in (-2, -1, 0, 1, 2)]
        fields = [0, sign, low, exponent, *powers]
        return [*fields, *(one ^ (2 * sign - 1) for one in fields)]

    wide = (one - (1 << 64) if one >> 63 else one for one in of(64, 52))
    return dict(zip(of(Scalar(name).bits, MANTISSA[name]), wide, strict=True))
