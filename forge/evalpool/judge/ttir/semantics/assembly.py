"""Inline assembly (`tt.elementwise_inline_asm`): one approximate instruction on float32.

`tanh.approx.f32 $0, $1;` and its like are functions that Triton's language lacks. Anything else
that a kernel writes in PTX or in AMD's assembly runs on a card alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forge.evalpool.judge.ttir.semantics.formats import scalar_of
from forge.evalpool.judge.ttir.tree import shape_of
from forge.evalpool.judge.ttir.values import Array, Operation, Unsupported, dtype_of

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.tree import Attribute, Signature

ORDERING = "griddepcontrol."
"""Instructions that order launches, which follow each other here. They compute nothing."""
_TEMPLATE = re.compile(r"\s*(\w+)\.approx(?:\.ftz)?\.f32\s+\$0\s*,\s*\$1\s*;?\s*")


def _reciprocal_root(x: Array) -> Array:
    return 1 / np.sqrt(x)


FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "cos": np.cos,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": _reciprocal_root,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}


def inline_asm(
    operands: Sequence[Array], signature: Signature, attributes: Mapping[str, Attribute]
) -> list[Array]:
    """The result of a template.

    Raises:
        Unsupported: with the template, where it is not known.
    """
    text = str(attributes["asm_string"])
    if text.startswith(ORDERING):
        shapes = [(1, *shape_of(kind)) for kind in signature.results]
        dtypes = [dtype_of(scalar_of(kind)) for kind in signature.results]
        return [np.zeros(*pair) for pair in zip(shapes, dtypes, strict=True)]
    found = _TEMPLATE.fullmatch(text)
    kinds = {scalar_of(kind).name for kind in (*signature.operands, *signature.results)}
    is_one = len(operands) == len(signature.results) == 1 and kinds == {"f32"}
    if found is None or not is_one or found[1] not in FUNCTIONS:
        raise Unsupported(f"inline assembly needs a card: {' '.join(text.split())[:80]!r}")
    return [FUNCTIONS[found[1]](operands[0].astype(np.float64)).astype(np.float32)]


ASSEMBLY: Mapping[str, Operation] = {"tt.elementwise_inline_asm": inline_asm}
