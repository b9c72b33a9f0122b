"""Inductor's generated code, as KernelBook and `torch.compile` write it, runs in a capture.

Its kernels become launches of the same jitted functions, its configurations a choice; allocations
and external kernels become aten operations. Names that later versions of torch or Triton removed
are put back.
"""

from __future__ import annotations

import collections
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, Protocol

import torch
import triton.backends.compiler
import triton.compiler.compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARK = "_inductor"
"""Text of a source that imports Inductor."""
GUARDS = "torch._C._dynamo"
"""Text of a source that uses its allocations, with it or without."""


class Choose(Protocol):
    """Records the alternatives of a choice; see `Tuning.choose`."""

    def __call__(
        self,
        key: str,
        alternatives: list[tuple[str, Callable[[], Any]]],
        restored: Callable[[], list[Any]],
    ) -> tuple[Any, int]:
        """The result of one of the alternatives."""
        ...


def patches(code: str, choose: Choose, *, folder: Path) -> Iterator[tuple[Any, str, Any]]:
    """Attributes and modules to replace: owner, name, value.

    Args:
        code: The candidate's source.
        choose: Records a kernel's configurations.
        folder: Place for the sources of kernels given as text.
    """
    if MARK in code or GUARDS in code:
        guards: Any = importlib.import_module("torch._C._dynamo.guards")
        yield guards, "_empty_strided_cuda", _empty_strided
        yield guards, "_reinterpret_tensor", _reinterpret
    if MARK in code:
        yield from _patches(choose, folder)


def _patches(choose: Choose, folder: Path) -> Iterator[tuple[Any, str, Any]]:
    """Attributes and modules of Inductor. Imports it (2 s if new)."""
    for owner in (triton.compiler.compiler, triton.backends.compiler):
        if not hasattr(owner, "AttrsDescriptor"):
            yield owner, "AttrsDescriptor", AttrsDescriptor
    heuristics: Any = importlib.import_module("torch._inductor.runtime.triton_heuristics")
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    hints: Any = importlib.import_module("torch._inductor.runtime.hints")
    yield helpers, "set_driver_to_gpu", lambda: None
    yield heuristics.CachingAutotuner, "run", _runner(heuristics, choose)
    for name, grid in GRIDS.items():
        if not hasattr(heuristics, name):
            yield heuristics, name, grid
    for name in ("pointwise", "reduction", "persistent_reduction", "cooperative_reduction"):
        if hasattr(heuristics, name):
            yield heuristics, name, _with_named_hints(getattr(heuristics, name))
    if not hasattr(hints, "instance_descriptor"):
        yield hints, "instance_descriptor", instance_descriptor
    yield from _modules(heuristics, helpers, folder)


def _modules(heuristics: Any, helpers: Any, folder: Path) -> Iterator[tuple[Any, str, Any]]:
    """Modules to stand in for others: they would start worker processes, or take a second."""

    class AsyncCompile:
        def triton(self, kernel_name: str, source_code: str, *_: Any, **__: Any) -> Any:
            return _loaded(kernel_name, source_code, folder)

        def wait(self, scope: Any) -> None:
            pass

    async_compile = types.ModuleType("torch._inductor.async_compile")
    async_compile.AsyncCompile = AsyncCompile  # pyright: ignore[reportAttributeAccessIssue]
    selection = types.ModuleType("torch._inductor.select_algorithm")
    selection.extern_kernels = ExternKernels()  # pyright: ignore[reportAttributeAccessIssue]
    found = {
        "async_compile": async_compile,
        "select_algorithm": selection,
        "triton_heuristics": heuristics,
        "triton_helpers": helpers,
    }
    package: Any = importlib.import_module("torch._inductor")
    for name, module in found.items():
        yield sys.modules, f"torch._inductor.{name}", module
        yield package, name, module
    codecache: Any = sys.modules.get("torch._inductor.codecache")
    if codecache is not None:
        yield codecache, "AsyncCompile", AsyncCompile


def _loaded(name: str, source: str, folder: Path) -> Any:
    """The kernel of a source text. Triton reads it from a real file."""
    number = len(list(folder.glob("inductor*.py")))
    file = folder / f"inductor{number}.py"
    file.write_text(source)
    scope: dict[str, Any] = {"__file__": str(file), "__name__": f"inductor{number}"}
    exec(compile(source, str(file), "exec", dont_inherit=True), scope)
    return scope[name]


def _runner(heuristics: Any, choose: Choose) -> Any:
    """In place of `CachingAutotuner.run`."""

    def run(tuner: Any, *args: Any, stream: Any = None, grid: Any = None, **kwargs: Any) -> Any:
        def launch(config: Any) -> Any:
            scope = {**_arguments(tuner, config, args), **kwargs}
            sizes = _grid(heuristics, tuner, config, grid, scope)
            options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
            return tuner.fn[sizes](**scope, **config.kwargs, **options)

        def restored() -> list[Any]:
            scope = _arguments(tuner, tuner.configs[0], args)
            return [scope[name] for name in tuner.mutated_arg_names if name in scope]

        alternatives = [(str(one), lambda one=one: launch(one)) for one in tuner.configs]
        return choose(f"inductor.{tuner.fn.__name__[:100]}", alternatives, restored)[0]

    return run


def _arguments(tuner: Any, config: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Values by parameter: constants of the kernel may be left out of the call."""
    names = [name for name in tuner.fn.arg_names if name not in config.kwargs]
    fixed = {
        tuner.fn.arg_names[key] if isinstance(key, int) else key: value
        for key, value in (tuner.triton_meta.get("constants") or {}).items()
        if not isinstance(key, tuple)
    }
    if len(args) < len(names):
        names = [name for name in names if name not in fixed]
    given = dict(zip(names, args, strict=False))
    return {name: value for name, value in fixed.items() if name not in config.kwargs} | given


def _grid(heuristics: Any, tuner: Any, config: Any, grid: Any, scope: dict[str, Any]) -> Any:
    if callable(grid):
        return grid({**config.kwargs, **scope})
    if grid is not None:
        return grid
    expression = heuristics.GridExpr.from_meta(tuner.inductor_meta, config)
    return expression.eval_slow({**scope, **config.kwargs})


def _with_named_hints(original: Callable[..., Any]) -> Callable[..., Any]:
    """A heuristic that takes size hints as older versions of torch wrote them, too: as a list."""
    is_reduction = original.__name__ != "pointwise"

    def heuristic(size_hints: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(size_hints, list | tuple):
            count = len(size_hints) - is_reduction
            names = [*reversed("xyz"[:count]), *(["r0_"] if is_reduction else [])]
            size_hints = dict(zip(names, size_hints, strict=True))
        return original(size_hints, *args, **kwargs)

    return heuristic


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


instance_descriptor = collections.namedtuple(
    "instance_descriptor",
    ["divisible_by_16", "equal_to_1", "ids_of_folded_args", "divisible_by_8"],
    defaults=[(), (), (), ()],
)


class AttrsDescriptor:
    """Facts about arguments that older versions of Inductor state; the launch finds them itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @classmethod
    def from_dict(cls, data: Any) -> AttrsDescriptor:
        """An empty one: hints are not used."""
        return cls()

    @classmethod
    def from_hints(cls, hints: Any) -> AttrsDescriptor:
        """An empty one: hints are not used."""
        return cls()


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
