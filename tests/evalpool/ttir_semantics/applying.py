"""One operation of TTIR applied to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.tree import Block, Scalar, Signature
from forge.evalpool.judge.ttir.values import Array, dtype_of


def kinds(names: str, shape: tuple[int, ...]) -> tuple[Block, ...]:
    """Blocks of one shape of each element type."""
    return tuple(Block(shape, Scalar(name)) for name in names.split())


def apply_all(name: str, operands: list[Array], types: str, **attributes: Any) -> list[Array]:
    """Results of an operation; `types` is `i32 i32 -> i1`, the blocks are those of the arrays."""
    ins, outs = types.split("->")
    shape = np.broadcast_shapes(*(one.shape for one in operands))[1:]
    signature = Signature(kinds(ins, shape), kinds(outs, shape))
    with np.errstate(all="ignore"):
        return OPERATIONS[name](operands, signature, attributes)


def apply(name: str, operands: list[Array], types: str, **attributes: Any) -> Array:
    """The only result of an operation."""
    (result,) = apply_all(name, operands, types, **attributes)
    return result


def row(numbers: Any, name: str) -> Array:
    """One instance of a block `[1, N]` of an element type."""
    return np.asarray(numbers, dtype_of(Scalar(name)))[None]
