"""Random arithmetic on float32 computes what one element after the other does."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

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


def reference(statements: list[Statement], x: float, z: float) -> list[Any]:
    """All variables of one element."""
    known: list[Any] = [np.float32(x), np.float32(z)]
    for name, a, b in statements:
        known.append(_result(name, known[a], known[b]))
    return known


def _result(name: str, a: Any, b: Any) -> Any:
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


@pytest.mark.parametrize("seed", range(40))
def test_random_arithmetic_is_that_of_each_element(seed: int) -> None:
    statements = drawn(seed)
    source = source_of(statements)
    x, z = np.random.default_rng(seed).standard_normal((2, NUM)).astype(np.float32)
    x[:4], z[2:6] = (np.nan, np.inf, 0.0, -0.0), (1.0, np.nan, 0.0, -np.inf)
    y = np.zeros((len(statements) + 2, NUM), np.float32)
    run(source, INSTANCES, x, z, y)
    with np.errstate(all="ignore"):
        right = [reference(statements, a, b) for a, b in zip(x, z, strict=True)]
    assert np.array_equal(y, np.array(right).T, equal_nan=True), source
