"""Integer operations against Python's integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.semantics.elementwise import multiply_high_signed
from tests.evalpool.ttir_semantics.applying import apply, row

if TYPE_CHECKING:
    from collections.abc import Callable

PREDICATES = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "uge"]
WIDTHS = (8, 16, 32, 64)


def wrap(value: int, bits: int) -> int:
    """The signed integer of the low bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def plain(value: int, bits: int) -> int:
    """The unsigned integer of the low bits."""
    return value & ((1 << bits) - 1)


def quotient(a: int, b: int) -> int:
    """Division towards zero; all bits set for a divisor of 0."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - quotient(a, b) * b if b else a


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """A width, and two lists of integers of it, the extremes among them."""
    bits = draw(st.sampled_from(WIDTHS))
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    number = st.one_of(
        st.sampled_from([low, low + 1, -1, 0, 1, 2, 3, high]), st.integers(low, high)
    )
    left = draw(st.lists(number, min_size=4, max_size=4))
    right = draw(st.lists(number, min_size=1, max_size=4).filter(lambda one: len(one) in (1, 4)))
    return bits, left, right


SIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": quotient,
    "arith.remsi": remainder,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.maxsi": max,
    "arith.minsi": min,
}
UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.divui": quotient,
    "arith.remui": remainder,
    "arith.maxui": max,
    "arith.minui": min,
}


@settings(max_examples=200)
@given(name=st.sampled_from([*SIGNED, *UNSIGNED]), case=pairs())
def test_arithmetic_wraps(name: str, case: tuple[int, list[int], list[int]]) -> None:
    bits, left, right = case
    kind = f"i{bits}"
    found = apply(name, [row(left, kind), row(right, kind)], f"{kind} {kind} -> {kind}")[0]
    others = right * 4 if len(right) == 1 else right
    if name in SIGNED:
        wanted = [wrap(SIGNED[name](a, b), bits) for a, b in zip(left, others, strict=True)]
    else:
        wanted = [
            wrap(UNSIGNED[name](plain(a, bits), plain(b, bits)), bits)
            for a, b in zip(left, others, strict=True)
        ]
    assert found.tolist() == wanted


@settings(max_examples=50)
@given(case=pairs(), amount=st.integers(0, 70))
def test_shifts_beyond_the_width_shift_everything_out(
    case: tuple[int, list[int], list[int]], amount: int
) -> None:
    bits, left, _ = case
    kind = f"i{bits}"
    operands = [row(left, kind), row([amount], kind)]
    types = f"{kind} {kind} -> {kind}"
    assert apply("arith.shli", operands, types)[0].tolist() == [
        wrap(a << amount, bits) for a in left
    ]
    assert apply("arith.shrsi", operands, types)[0].tolist() == [a >> amount for a in left]
    assert apply("arith.shrui", operands, types)[0].tolist() == [
        wrap(plain(a, bits) >> amount, bits) for a in left
    ]


@settings(max_examples=50)
@given(case=pairs())
def test_products_of_twice_the_width(case: tuple[int, list[int], list[int]]) -> None:
    bits, left, right = case
    kind = f"i{bits}"
    operands = [row(left, kind), row(right * (4 // len(right)), kind)]
    products = list(zip(left, right * (4 // len(right)), strict=True))
    high = multiply_high_signed(*operands)
    assert high[0].tolist() == [wrap(a * b >> bits, bits) for a, b in products]
    high_unsigned = apply("tt.mulhiui", operands, f"{kind} {kind} -> {kind}")
    unsigned = [plain(a, bits) * plain(b, bits) >> bits for a, b in products]
    assert high_unsigned[0].tolist() == [wrap(one, bits) for one in unsigned]


@given(predicate=st.sampled_from(PREDICATES), case=pairs())
def test_comparisons(predicate: str, case: tuple[int, list[int], list[int]]) -> None:
    bits, left, right = case
    kind = f"i{bits}"
    operands = [row(left, kind), row(right, kind)]
    found = apply("arith.cmpi", operands, f"{kind} {kind} -> i1", predicate=predicate)
    view = plain if predicate[0] == "u" else wrap
    pairs_ = [(view(a, bits), view(b, bits)) for a, b in zip(left, right * 4, strict=False)]
    word = predicate[-2:]
    wanted = {
        "eq": [a == b for a, b in pairs_],
        "ne": [a != b for a, b in pairs_],
        "lt": [a < b for a, b in pairs_],
        "le": [a <= b for a, b in pairs_],
        "gt": [a > b for a, b in pairs_],
        "ge": [a >= b for a, b in pairs_],
    }[word]
    assert found[0].tolist() == wanted


def test_booleans_add_without_carry_and_are_negative_where_signed() -> None:
    a, b = row([0, 0, 1, 1], "i1"), row([0, 1, 0, 1], "i1")
    assert apply("arith.addi", [a, b], "i1 i1 -> i1")[0].tolist() == [False, True, True, False]
    assert apply("arith.muli", [a, b], "i1 i1 -> i1")[0].tolist() == [False, False, False, True]
    less = apply("arith.cmpi", [a, b], "i1 i1 -> i1", predicate="slt")
    assert less[0].tolist() == [False, False, True, False]
    assert apply("arith.extsi", [a], "i1 -> i32")[0].tolist() == [0, 0, -1, -1]
    assert apply("arith.extui", [a], "i1 -> i32")[0].tolist() == [0, 0, 1, 1]
    assert apply("arith.sitofp", [a], "i1 -> f32")[0].tolist() == [0, 0, -1, -1]
