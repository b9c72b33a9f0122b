# pyright: strict
"""Triton's signature of a kernel, and the types of its function in MLIR."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.evalpool.judge.program.format import Parameter

ELEMENTS = {
    **{"fp16": "f16", "bf16": "bf16", "fp32": "f32", "f32": "f32", "fp64": "f64"},
    **{f"{sign}{bits}": f"i{bits}" for sign in "iu" for bits in (1, 8, 16, 32, 64)},
    **{"fp8e4nv": "f8E4M3FN", "fp8e5": "f8E5M2", "fp8e4b8": "f8E4M3FNUZ", "fp8e5b16": "f8E5M2FNUZ"},
    **{"fp8e4b15": "i8", "B": "i1"},
}
"""Triton's name of an element type to MLIR's."""
_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")


def takes(found: Sequence[str], parameters: Sequence[Parameter]) -> bool:
    """Returns whether a function takes the parameters, one after the other.

    Args:
        found: MLIR types of its arguments, pointers as `*f32`.
    """
    rest = list(found)
    for parameter in parameters:
        forms = _forms(parameter.type)
        form = next((one for one in forms if rest[: len(one)] == one), None)
        if form is None:
            return False
        rest = rest[len(form) :]
    return not rest


def _forms(signature: str) -> list[list[str]]:
    """The sequences of MLIR types that one parameter may become; empty for an unknown type."""
    if signature == "nvTmaDesc":
        return [["*i8"]]
    if signature.startswith("*"):
        element = ELEMENTS.get(signature.removeprefix("*").removeprefix("k"))
        return [[f"*{element}"]] if element else []
    descriptor = _DESCRIPTOR.fullmatch(signature)
    if descriptor:
        return _descriptor_forms(ELEMENTS.get(descriptor[1], ""), descriptor[2].split(","))
    element = ELEMENTS.get(signature)
    return [[element]] if element else []


def _descriptor_forms(element: str, block: list[str]) -> list[list[str]]:
    """A descriptor; or, where the target has no tensor maps, a pointer with shape, strides and
    flags (one flag until Triton 3.6, then two). Shape and strides that follow it in either form
    are parameters of their own."""
    box = "x".join([*(size.strip() for size in block), element])
    plain = [f"*{element}", *["i64"] * (2 * len(block))]
    described = [[f"!tt.tensordesc<{box}>"], [f"!tt.tensordesc<tensor<{box}>>"]]
    return [*described, [*plain, "i1", "i1"], [*plain, "i1"]]
