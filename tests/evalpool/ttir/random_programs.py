"""Random kernels over 32-bit integers: their TTIR, and what one lane after the other computes.

A kernel is a list of statements over variables, each a block of 16 lanes. `Writer` prints them as
TTIR, `evaluate` computes them in plain Python for one program id, with lists of 16 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

LANES = 16
BINARY = ("addi", "subi", "muli", "divsi", "remsi", "andi", "ori", "xori", "maxsi", "minsi")
PREDICATES = ("slt", "sle", "sgt", "sge", "eq", "ne", "ult", "uge")
FOLDS = ("addi", "maxsi", "minsi", "xori", "carried")
"""`carried`: `(a & b) + (a | b)`, the sum by a region of several operations."""
CONSTANTS = (-7, -1, 0, 1, 2, 3, 4, 16, 100, 2**30, 2**31 - 1, -(2**31))
KIND = "tensor<16xi32>"
FACTOR = 31


@dataclass(frozen=True)
class Constant:
    value: int


@dataclass(frozen=True)
class Binary:
    name: str
    a: int
    b: int


@dataclass(frozen=True)
class Select:
    """a where `left predicate right`, else b."""

    predicate: str
    left: int
    right: int
    a: int
    b: int


@dataclass(frozen=True)
class Fold:
    """All lanes combined, or each with those before it."""

    name: str
    a: int
    is_scan: bool
    reverse: bool = False


@dataclass(frozen=True)
class Loop:
    """`trips + pid % 3` times: the body's last variable becomes the carried one (its first)."""

    start: int
    trips: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Branch:
    """The body's last variable where `pid < limit`, else variable `a`."""

    limit: int
    a: int
    body: tuple[Statement, ...]


Statement: TypeAlias = Constant | Binary | Select | Fold | Loop | Branch


def statements(draw: Random, *, depth: int, known: int) -> tuple[Statement, ...]:
    """A list of statements where `known` variables exist already; each adds one."""
    count = draw.randint(2, 8)
    return tuple(_statement(draw, depth, known + place) for place in range(count))


def _statement(draw: Random, depth: int, known: int) -> Statement:
    kinds = [
        "constant",
        *["binary"] * 4,
        "select",
        *["fold"] * 4,
        *["loop", "branch"] * (depth > 0),
    ]
    a, b, c, d = (draw.randrange(known) for _ in range(4))
    match draw.choice(kinds):
        case "constant":
            return Constant(draw.choice(CONSTANTS))
        case "binary":
            return Binary(draw.choice(BINARY), a, b)
        case "select":
            return Select(draw.choice(PREDICATES), a, b, c, d)
        case "fold":
            return Fold(draw.choice(FOLDS), a, draw.random() < 0.5, draw.random() < 0.5)
        case "loop":
            body = statements(draw, depth=depth - 1, known=known + 2)
            return Loop(a, draw.randint(0, 2), body)
        case _:
            return Branch(draw.randint(0, 6), a, statements(draw, depth=depth - 1, known=known))


@dataclass
class Writer:
    """Prints statements as TTIR; variables are the SSA names in `names`."""

    names: list[str]
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def new(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def say(self, text: str) -> str:
        name = self.new()
        self.lines.append(f"    {name} = {text}")
        return name

    def write(self, one: Statement) -> None:
        self.names.append(self._written(one))

    def mixed(self) -> str:
        """One variable that depends on all."""
        found, factor = self.names[0], self.say(f"arith.constant dense<{FACTOR}> : {KIND}")
        for name in self.names[1:]:
            product = self.say(f"arith.muli {found}, {factor} : {KIND}")
            found = self.say(f"arith.addi {product}, {name} : {KIND}")
        return found

    def _written(self, one: Statement) -> str:
        names = self.names
        match one:
            case Constant(value):
                return self.say(f"arith.constant dense<{value}> : {KIND}")
            case Binary(name, a, b):
                right = names[b]
                if name in ("divsi", "remsi"):
                    right = self._positive(right)
                return self.say(f"arith.{name} {names[a]}, {right} : {KIND}")
            case Select(predicate, left, right, a, b):
                mask = self.say(f"arith.cmpi {predicate}, {names[left]}, {names[right]} : {KIND}")
                kinds = f"tensor<16xi1>, {KIND}"
                return self.say(f"arith.select {mask}, {names[a]}, {names[b]} : {kinds}")
            case Fold():
                return self._fold(one)
            case Loop(start, trips, body):
                return self._loop(names[start], trips, body)
            case Branch(limit, a, body):
                return self._branch(limit, names[a], body)

    def _positive(self, name: str) -> str:
        """A divisor: 1 where the value is not positive."""
        one = self.say(f"arith.constant dense<1> : {KIND}")
        return self.say(f"arith.maxsi {name}, {one} : {KIND}")

    def _fold(self, one: Fold) -> str:
        name, a, b, c = self.new(), self.new(), self.new(), self.new()
        kind, result = ("scan", KIND) if one.is_scan else ("reduce", "i32")
        more = f", reverse = {str(one.reverse).lower()}" if one.is_scan else ""
        self.lines += [
            f'    {name} = "tt.{kind}"({self.names[one.a]}) <{{axis = 0 : i32{more}}}> ({{',
            f"    ^bb0({a}: i32, {b}: i32):",
        ]
        if one.name == "carried":
            both, either = self.new(), self.new()
            self.lines += [
                f"      {both} = arith.andi {a}, {b} : i32",
                f"      {either} = arith.ori {a}, {b} : i32",
                f"      {c} = arith.addi {both}, {either} : i32",
            ]
        else:
            self.lines.append(f"      {c} = arith.{one.name} {a}, {b} : i32")
        self.lines += [
            f"      tt.{kind}.return {c} : i32",
            f"    }}) : ({KIND}) -> {result}",
        ]
        return name if one.is_scan else self.say(f"tt.splat {name} : i32 -> {KIND}")

    def _inner(self, body: tuple[Statement, ...], *added: str) -> str:
        """Writes a body with more variables; the name of its last one."""
        kept = len(self.names)
        self.names += added
        for one in body:
            self.write(one)
        last = self.names[-1]
        del self.names[kept:]
        return last

    def _loop(self, start: str, trips: int, body: tuple[Statement, ...]) -> str:
        three = self.say("arith.constant 3 : i32")
        rest = self.say(f"arith.remsi %pid, {three} : i32")
        some = self.say(f"arith.constant {trips} : i32")
        end = self.say(f"arith.addi {rest}, {some} : i32")
        zero, step = self.say("arith.constant 0 : i32"), self.say("arith.constant 1 : i32")
        name, index, carried = self.new(), self.new(), self.new()
        self.lines.append(
            f"    {name} = scf.for {index} = {zero} to {end} step {step} "
            f"iter_args({carried} = {start}) -> ({KIND})  : i32 {{"
        )
        wide = self.say(f"tt.splat {index} : i32 -> {KIND}")
        last = self._inner(body, carried, wide)
        self.lines += [f"      scf.yield {last} : {KIND}", "    }"]
        return name

    def _branch(self, limit: int, other: str, body: tuple[Statement, ...]) -> str:
        bound = self.say(f"arith.constant {limit} : i32")
        mask = self.say(f"arith.cmpi slt, %pid, {bound} : i32")
        name = self.new()
        self.lines.append(f"    {name} = scf.if {mask} -> ({KIND}) {{")
        last = self._inner(body)
        self.lines += [
            f"      scf.yield {last} : {KIND}",
            "    } else {",
            f"      scf.yield {other} : {KIND}",
            "    }",
        ]
        return name


# the same in Python, lane by lane


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def combined(name: str, a: int, b: int) -> int:
    if name in ("divsi", "remsi"):
        b = max(b, 1)
        quotient = abs(a) // b * (1 if a >= 0 else -1)
        return quotient if name == "divsi" else a - quotient * b
    results = {
        "addi": a + b,
        "carried": a + b,
        "subi": a - b,
        "muli": a * b,
        "andi": a & b,
        "ori": a | b,
        "xori": a ^ b,
        "maxsi": max(a, b),
        "minsi": min(a, b),
    }
    return wrapped(results[name])


def compared(predicate: str, a: int, b: int) -> bool:
    if predicate[0] == "u":
        a, b, predicate = a % 2**32, b % 2**32, "s" + predicate[1:]
    answers = {"slt": a < b, "sle": a <= b, "sgt": a > b, "sge": a >= b, "eq": a == b, "ne": a != b}
    return answers[predicate]


def evaluate(one: Statement, known: list[list[int]], pid: int) -> list[int]:
    """The new variable's lanes."""
    match one:
        case Constant(value):
            return [value] * LANES
        case Binary(name, a, b):
            return [combined(name, x, y) for x, y in zip(known[a], known[b], strict=True)]
        case Select(predicate, left, right, a, b):
            return [
                known[a][lane]
                if compared(predicate, known[left][lane], known[right][lane])
                else known[b][lane]
                for lane in range(LANES)
            ]
        case Fold(name, a, is_scan, reverse):
            return _folded(name, known[a], is_scan, reverse)
        case Loop(start, trips, body):
            value = known[start]
            for index in range(trips + pid % 3):
                value = run(body, [*known, value, [index] * LANES], pid)
            return value
        case Branch(limit, a, body):
            return run(body, list(known), pid) if pid < limit else known[a]


def run(body: tuple[Statement, ...], known: list[list[int]], pid: int) -> list[int]:
    """The last variable of a list of statements."""
    for one in body:
        known.append(evaluate(one, known, pid))
    return known[-1]


def mixed(known: list[list[int]]) -> list[int]:
    """As `Writer.mixed`."""
    found = known[0]
    for lanes in known[1:]:
        found = [wrapped(FACTOR * a + b) for a, b in zip(found, lanes, strict=True)]
    return found


def _folded(name: str, lanes: list[int], is_scan: bool, reverse: bool) -> list[int]:
    reverse = reverse and is_scan
    found: list[int] = []
    for value in reversed(lanes) if reverse else lanes:
        found.append(combined(name, found[-1], value) if found else value)
    if not is_scan:
        return found[-1:] * LANES
    return found[::-1] if reverse else found
