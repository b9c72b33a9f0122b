"""Reductions whose row fits into one block, also at the largest sizes: one pass, no loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import sympy
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonKernel, TritonSymbols
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import V

if TYPE_CHECKING:
    from forge.data.inductor.compiler.sizes import Sizes

MOST = {ReductionHint.INNER: 4096, ReductionHint.DEFAULT: 1024}
"""Longest row that one block holds; elsewhere neighbours along the row lie far apart."""
OTHERWISE = 64


def reductions(stack: contextlib.ExitStack, sizes: Sizes) -> None:
    """Chooses how rows are reduced until the stack is left."""

    def is_persistent(features: Any, _: bool) -> bool:
        most = MOST.get(features.get_reduction_hint(), OTHERWISE)
        size = features.reduction_numel
        longest = max(_length(size), sizes.largest_of(size) or 0)
        return _is_of_one_axis(size) and longest <= most

    shape_of = TritonSymbols.get_block_shape

    def block_shape(expr: Any) -> Any:
        """As Inductor's, which fails for the index of a row that is a number and no tensor."""
        kernel: Any = V.kernel
        rows = {tree.prefix for tree in kernel.range_trees if tree.tensor_dim is None}
        indices = (one for one in expr.free_symbols if one.name.rstrip("0123456789") in rows)
        return shape_of(expr.xreplace(dict.fromkeys(indices, sympy.Integer(0))))

    choose = staticmethod(is_persistent)
    for owner, name, value in (
        (InductorChoices, "should_use_persistent_reduction", choose),
        (TritonKernel, "_get_persistent_RBLOCK", staticmethod(_block)),
        (TritonKernel, "want_no_x_dim", _has_one_row),
        (TritonSymbols, "get_block_shape", staticmethod(block_shape)),
    ):
        stack.enter_context(mock.patch.object(owner, name, value))


def _length(size: Any) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=1 << 20))


def _is_of_one_axis(size: Any) -> bool:
    """True for a row along one axis; a product of axes soon is longer than the largest block."""
    size = sympy.sympify(size)
    return len(size.free_symbols) <= 1 and not size.has(sympy.Pow)


def _block(size: Any) -> int:
    return 1 << max(_length(size) - 1, 0).bit_length()


def _has_one_row(self: Any) -> bool:
    """True for a kernel whose program reduces one row."""
    is_plain = self.persistent_reduction and len(self.numels) == self.num_reduction_dims + 1
    hint = self.features.get_reduction_hint()
    return is_plain and hint == ReductionHint.INNER
