"""Inductor's generated code, as KernelBook shows it, runs in a capture.

Its kernels are plain Triton; allocations and external kernels become aten operations. Names that
later versions of torch removed are put back.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

MARK = "_inductor"
"""Text of a source that imports Inductor."""
GUARDS = "torch._C._dynamo"
"""Text of a source that uses its allocations, with it or without."""


def patches(code: str) -> Iterator[tuple[Any, str, Any]]:
    """Attributes and modules to replace, for a source: owner, name, value. Imports Inductor where
    it is named (2 s if new)."""
    if MARK in code or GUARDS in code:
        guards: Any = importlib.import_module("torch._C._dynamo.guards")
        yield guards, "_empty_strided_cuda", _empty_strided
        yield guards, "_reinterpret_tensor", _reinterpret
    if MARK in code:
        heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
        for name, grid in GRIDS.items():
            if not hasattr(heuristics, name):
                yield heuristics, name, grid
        selection = types.ModuleType("torch._inductor.select_algorithm")
        selection.extern_kernels = ExternKernels()  # pyright: ignore[reportAttributeAccessIssue]
        yield sys.modules, selection.__name__, selection  # the module itself takes a second
        package: Any = importlib.import_module("torch._inductor")
        yield package, "select_algorithm", selection


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


class ExternKernels:
    """`extern_kernels`: aten's operations, by name."""

    def __getattr__(self, name: str) -> Any:
        if name == "convolution":
            return torch.ops.aten.convolution
        return getattr(torch.ops.aten, name)

    def _mm_plus_mm(self, a: Any, b: Any, c: Any, d: Any, *, out: Any) -> Any:
        torch.mm(a, b, out=out)
        return out.addmm_(c, d)

    def bias_addmm(self, bias: Any, a: Any, b: Any, **kwargs: Any) -> Any:
        """`torch.addmm` under Inductor's name."""
        return torch.addmm(bias, a, b, **kwargs)


def _ceildiv(count: int, block: int | None) -> int:
    return count if not block else -(-count // block)


def grid(*numels: int | None) -> Callable[[dict[str, Any]], tuple[int, int, int]]:
    """The grid of a pointwise or reduction kernel: sizes of x, or of y and x, or of z, y and x."""
    sizes = [1 if one is None else one for one in numels]
    x, y, z = (*reversed(sizes), 1, 1)[:3]

    def of(meta: dict[str, Any]) -> tuple[int, int, int]:
        x_grid = _ceildiv(x, meta.get("XBLOCK"))
        y_grid = _ceildiv(y, meta.get("YBLOCK"))
        z_grid = _ceildiv(z, meta.get("ZBLOCK"))
        if len(sizes) < 3 and y_grid > 65535:  # CUDA's limit
            z_grid = _ceildiv(y_grid, 65535)
            y_grid = _ceildiv(y_grid, z_grid)
        return x_grid, y_grid, z_grid

    return of


def split_scan_grid(xnumel: int, rnumel: int) -> Callable[[dict[str, Any]], tuple[int, int, int]]:
    """The grid of a scan that is split along the reduction."""

    def of(meta: dict[str, Any]) -> tuple[int, int, int]:
        assert meta.get("XBLOCK", 1) == 1
        block = meta.get("R0_BLOCK") or meta.get("RBLOCK")
        return _ceildiv(rnumel, block), xnumel, 1

    return of


GRIDS: dict[str, Any] = {"grid": grid, "split_scan_grid": split_scan_grid}
"""Functions of `triton_heuristics` that newer versions of torch have not."""
