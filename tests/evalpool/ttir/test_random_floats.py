"""Random arithmetic on float32 computes what one element after the other does, products fused with
sums as a card's compiler fuses them or not."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from forge.evalpool.judge.ttir.contraction import ALL, NONE
from tests.evalpool.ttir.kernels import kernel, pointers, run

LANES, INSTANCES = 16, 3
NUM = LANES * INSTANCES
KIND, POINTERS = "tensor<16xf32>", "tensor<16x!tt.ptr<f32>>"
OPERATIONS = ("addf", "subf", "mulf", "mulf", "divf", "maximumf", "minimumf", "select")
Statement = tuple[str, int, int]
"""Operation and its two operands, by number; the first two variables are the inputs. A `select`
takes the smaller operand by a comparison."""


def drawn(seed: int) -> list[Statement]:
    draw = Random(seed)
    return [
        (draw.choice(OPERATIONS), draw.randrange(place), draw.randrange(place))
        for place in range(2, 2 + draw.randint(4, 14))
    ]


def source_of(statements: list[Statement]) -> str:
    """Stores every variable behind the one before."""
    lines = [pointers("x"), pointers("z")]
    lines += [f"    %v{k} = tt.load %{n}.at : tensor<16x!tt.ptr<f32>>" for k, n in enumerate("xz")]
    for place, (name, a, b) in enumerate(statements, 2):
        if name == "select":
            lines.append(f"    %m{place} = arith.cmpf olt, %v{a}, %v{b} : {KIND}")
            kinds = f"tensor<16xi1>, {KIND}"
            lines.append(f"    %v{place} = arith.select %m{place}, %v{a}, %v{b} : {kinds}")
        else:
            lines.append(f"    %v{place} = arith.{name} %v{a}, %v{b} : {KIND}")
    lines.append("    %y.all = tt.splat %y : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>")
    for place in range(len(statements) + 2):
        lines += [
            f"    %o{place} = arith.constant dense<{place * NUM}> : tensor<16xi32>",
            f"    %j{place} = arith.addi %i, %o{place} : tensor<16xi32>",
            f"    %p{place} = tt.addptr %y.all, %j{place} : {POINTERS}, tensor<16xi32>",
            f"    tt.store %p{place}, %v{place} : {POINTERS}",
        ]
    return kernel("%x: !tt.ptr<f32>, %z: !tt.ptr<f32>, %y: !tt.ptr<f32>", "\n".join(lines))


def reference(statements: list[Statement], x: float, z: float, *, is_fused: bool) -> list[Any]:
    """All variables of one element."""
    uses = Counter(
        one for name, a, b in statements for one in (a, b, *((a, b) * (name == "select")))
    )
    known: list[Any] = [np.float32(x), np.float32(z)]
    for name, a, b in statements:
        products = [one for one in (a, b) if one >= 2 and statements[one - 2][0] == "mulf"]
        if is_fused and products and name in ("addf", "subf"):
            place = min(products, key=lambda one: uses[one])
            known.append(
                _fused(name, known, place == a, statements[place - 2], b if place == a else a)
            )
        else:
            known.append(_plain(name, known[a], known[b]))
    return known


def _fused(name: str, known: list[Any], is_left: bool, product: Statement, other: int) -> Any:
    exact = float(known[product[1]]) * float(known[product[2]])
    third = float(known[other])
    if name == "addf":
        return np.float32(exact + third)
    return np.float32(exact - third if is_left else third - exact)


def _plain(name: str, a: Any, b: Any) -> Any:
    match name:
        case "addf":
            return a + b
        case "subf":
            return a - b
        case "mulf":
            return a * b
        case "divf":
            return np.divide(a, b)
        case "select":
            return a if a < b else b
        case _:
            return (np.maximum if name == "maximumf" else np.minimum)(a, b)


@pytest.mark.parametrize("fusion", [ALL, NONE])
@pytest.mark.parametrize("seed", range(40))
def test_random_arithmetic_is_that_of_each_element(seed: int, fusion: int) -> None:
    statements = drawn(seed)
    source = source_of(statements)
    x, z = np.random.default_rng(seed).standard_normal((2, NUM)).astype(np.float32)
    x[:4], z[2:6] = (np.nan, np.inf, 0.0, -0.0), (1.0, np.nan, 0.0, -np.inf)
    y = np.zeros((len(statements) + 2, NUM), np.float32)
    run(source, INSTANCES, x, z, y, fusion=fusion)
    with np.errstate(all="ignore"):
        right = [
            reference(statements, a, b, is_fused=fusion == ALL) for a, b in zip(x, z, strict=True)
        ]
    assert np.array_equal(y, np.array(right).T, equal_nan=True), source
