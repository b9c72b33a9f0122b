"""Random kernels over 32-bit integers compute what one lane after the other computes.

A variable is a block of 16 lanes. `Writer` draws statements, each of which adds a variable: its
TTIR, and a function that computes it in plain Python from lists of 16 numbers, for a program id.
"""

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import numpy as np
import pytest

from forge.evalpool.judge.ttir.evaluate import Order
from tests.evalpool.ttir.kernels import kernel, memory_of, pointers, run

LANES, INSTANCES = 16, 7
KIND = "tensor<16xi32>"
CONSTANTS = (-7, -1, 0, 1, 2, 3, 4, 16, 100, 2**30, 2**31 - 1, -(2**31))
FACTOR = 31
Lanes: TypeAlias = list[int]
Compute: TypeAlias = Callable[[list[Lanes], int], Lanes]
"""The lanes of a new variable, from those before it and the program id."""


def quotient(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "divsi": lambda a, b: quotient(a, max(b, 1)),
    "remsi": lambda a, b: a - quotient(a, max(b, 1)) * max(b, 1),
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "maxsi": max,
    "minsi": min,
}
PREDICATES: dict[str, Callable[[int, int], bool]] = {
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ult": lambda a, b: a % 2**32 < b % 2**32,
    "uge": lambda a, b: a % 2**32 >= b % 2**32,
}


def combined(name: str, a: int, b: int) -> int:
    """The result as an integer of 32 bits."""
    return (BINARY[name](a, b) + 2**31) % 2**32 - 2**31


def computed(body: list[Compute], known: list[Lanes], pid: int) -> Lanes:
    """The last variable of a list of statements."""
    for one in body:
        known.append(one(known, pid))
    return known[-1]


class Writer:
    """Draws statements; `names` are the SSA names of the variables so far."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.names = ["%x.value", "%i", "%pids"]
        self.lines: list[str] = []
        self.count = 0

    def new(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def say(self, text: str) -> str:
        name = self.new()
        self.lines.append(f"    {name} = {text}")
        return name

    def one(self) -> int:
        """A variable."""
        return self.draw.randrange(len(self.names))

    def body(self, depth: int, *added: str) -> tuple[str, list[Compute]]:
        """Statements with more variables, and the name of the last one; all are gone behind it."""
        kept = len(self.names)
        self.names += added
        found = [self.statement(depth) for _ in range(self.draw.randint(2, 8))]
        last = self.names[-1]
        del self.names[kept:]
        return last, found

    def statement(self, depth: int) -> Compute:
        nested = [self.loop, self.branch] * (depth > 0)
        kinds = [self.constant, *[self.binary] * 4, self.select, *[self.fold] * 4, *nested]
        kinds += [self.gather] * 2
        name, compute = self.draw.choice(kinds)(depth - 1)
        self.names.append(name)
        return compute

    def constant(self, _depth: int) -> tuple[str, Compute]:
        value = self.draw.choice(CONSTANTS)
        name = self.say(f"arith.constant dense<{value}> : {KIND}")
        return name, lambda known, pid: [value] * LANES

    def binary(self, _depth: int) -> tuple[str, Compute]:
        name, a, b = self.draw.choice(list(BINARY)), self.one(), self.one()
        right = self.names[b]
        if name in ("divsi", "remsi"):
            one = self.say(f"arith.constant dense<1> : {KIND}")
            right = self.say(f"arith.maxsi {right}, {one} : {KIND}")
        made = self.say(f"arith.{name} {self.names[a]}, {right} : {KIND}")
        return made, lambda known, pid: [
            combined(name, x, y) for x, y in zip(known[a], known[b], strict=True)
        ]

    def select(self, _depth: int) -> tuple[str, Compute]:
        predicate, (left, right, a, b) = (
            self.draw.choice(list(PREDICATES)),
            (self.one() for _ in range(4)),
        )
        names, holds = self.names, PREDICATES[predicate]
        mask = self.say(f"arith.cmpi {predicate}, {names[left]}, {names[right]} : {KIND}")
        made = self.say(f"arith.select {mask}, {names[a]}, {names[b]} : tensor<16xi1>, {KIND}")
        return made, lambda known, pid: [
            known[a if holds(known[left][lane], known[right][lane]) else b][lane]
            for lane in range(LANES)
        ]

    def gather(self, _depth: int) -> tuple[str, Compute]:
        """Elements of the instance's row of x at a variable, where another one is below 7; else 0.
        Some of these depend on no input."""
        at, limited, (row, seven, zero) = self.one(), self.one(), (15, 7, 0)
        ends = [self.say(f"arith.constant dense<{n}> : {KIND}") for n in (row, seven, zero)]
        place = self.say(f"arith.andi {self.names[at]}, {ends[0]} : {KIND}")
        index = self.say(
            f"arith.addi {place}, {self.say(f'tt.splat %base : i32 -> {KIND}')} : {KIND}"
        )
        mask = self.say(f"arith.cmpi slt, {self.names[limited]}, {ends[1]} : {KIND}")
        block = "tensor<16x!tt.ptr<i32>>"
        address = self.say(f"tt.addptr %x.all, {index} : {block}, {KIND}")
        made = self.say(f"tt.load {address}, {mask}, {ends[2]} : {block}")
        return made, lambda known, pid: [
            known[0][place & row] if other < seven else zero
            for place, other in zip(known[at], known[limited], strict=True)
        ]

    def fold(self, _depth: int) -> tuple[str, Compute]:
        """All lanes combined, or each with those before it. `carried` is the sum by a region of
        several operations, `(a & b) + (a | b)`."""
        folded = self.draw.choice(("addi", "maxsi", "minsi", "xori", "carried"))
        is_scan, reverse, given = self.draw.random() < 0.5, self.draw.random() < 0.5, self.one()
        name, a, b, c = self.new(), self.new(), self.new(), self.new()
        kind, result = ("scan", KIND) if is_scan else ("reduce", "i32")
        more = f", reverse = {str(reverse).lower()}" if is_scan else ""
        lines = [f"{c} = arith.{folded} {a}, {b} : i32"]
        if folded == "carried":
            both, either, folded = self.new(), self.new(), "addi"
            lines = [
                f"{both} = arith.andi {a}, {b} : i32",
                f"{either} = arith.ori {a}, {b} : i32",
                f"{c} = arith.addi {both}, {either} : i32",
            ]
        self.lines += [
            f'    {name} = "tt.{kind}"({self.names[given]}) <{{axis = 0 : i32{more}}}> ({{',
            f"    ^bb0({a}: i32, {b}: i32):",
            *lines,
            f"      tt.{kind}.return {c} : i32",
            f"    }}) : ({KIND}) -> {result}",
        ]

        def compute(known: list[Lanes], pid: int) -> Lanes:
            step = -1 if reverse and is_scan else 1
            found: Lanes = []
            for value in known[given][::step]:
                found.append(combined(folded, found[-1], value) if found else value)
            return found[::step] if is_scan else found[-1:] * LANES

        return name if is_scan else self.say(f"tt.splat {name} : i32 -> {KIND}"), compute

    def loop(self, depth: int) -> tuple[str, Compute]:
        """`trips + pid % 3` times: the body's last variable becomes the carried one (its first)."""
        start, trips = self.one(), self.draw.randint(0, 2)
        three, some, zero, step = (
            self.say(f"arith.constant {number} : i32") for number in (3, trips, 0, 1)
        )
        rest = self.say(f"arith.remsi %pid, {three} : i32")
        end = self.say(f"arith.addi {rest}, {some} : i32")
        name, index, carried = self.new(), self.new(), self.new()
        self.lines.append(
            f"    {name} = scf.for {index} = {zero} to {end} step {step} "
            f"iter_args({carried} = {self.names[start]}) -> ({KIND})  : i32 {{"
        )
        last, body = self.body(depth, carried, self.say(f"tt.splat {index} : i32 -> {KIND}"))
        self.lines += [f"      scf.yield {last} : {KIND}", "    }"]

        def compute(known: list[Lanes], pid: int) -> Lanes:
            value = known[start]
            for number in range(trips + pid % 3):
                value = computed(body, [*known, value, [number] * LANES], pid)
            return value

        return name, compute

    def branch(self, depth: int) -> tuple[str, Compute]:
        """The body's last variable where `pid < limit`, else another one."""
        limit, other = self.draw.randint(0, 6), self.one()
        bound = self.say(f"arith.constant {limit} : i32")
        mask = self.say(f"arith.cmpi slt, %pid, {bound} : i32")
        name = self.new()
        self.lines.append(f"    {name} = scf.if {mask} -> ({KIND}) {{")
        last, body = self.body(depth)
        self.lines += [f"      scf.yield {last} : {KIND}", "    } else {"]
        self.lines += [f"      scf.yield {self.names[other]} : {KIND}", "    }"]
        return (
            name,
            lambda known, pid: computed(body, list(known), pid) if pid < limit else known[other],
        )


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("seed", range(60))
def test_all_instances_at_once_compute_what_each_lane_does(seed: int, order: Order) -> None:
    writer = Writer(Random(seed))
    body = [writer.statement(2) for _ in range(writer.draw.randint(2, 8))]
    x = np.random.default_rng(0).integers(-(2**31), 2**31, LANES * INSTANCES, np.int32)
    y = np.zeros_like(x)
    mixed, factor = writer.names[0], writer.say(f"arith.constant dense<{FACTOR}> : {KIND}")
    for name in writer.names[1:]:  # one variable that depends on all
        product = writer.say(f"arith.muli {mixed}, {factor} : {KIND}")
        mixed = writer.say(f"arith.addi {product}, {name} : {KIND}")
    source = kernel(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>",
        pointers("x", kind="i32")
        + pointers("y", kind="i32")
        + "    %x.value = tt.load %x.at : tensor<16x!tt.ptr<i32>>\n"
        + "    %pids = tt.splat %pid : i32 -> tensor<16xi32>\n"
        + "\n".join(writer.lines)
        + f"\n    tt.store %y.at, {mixed} : tensor<16x!tt.ptr<i32>>",
    )
    memory, others = memory_of(x, y), x.copy()
    for given in (x[::-1].copy(), others):  # the second call knows places of the first
        x[:] = given
        run(source, INSTANCES, x, y, order=order, memory=memory, key=0)
    for pid in range(INSTANCES):
        lanes = list(range(pid * LANES, (pid + 1) * LANES))
        known = [[int(one) for one in x[lanes]], lanes, [pid] * LANES]
        computed(body, known, pid)
        wanted = known[0]
        for one in known[1:]:
            pairs = zip(wanted, one, strict=True)
            wanted = [combined("addi", FACTOR * a, b) for a, b in pairs]
        assert list(y[lanes]) == wanted, source
