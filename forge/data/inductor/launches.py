"""Reads a launch: `kernel[grid(n)](...)` with its sizes, or `kernel.run(..., stream=...)`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from forge.data.inductor.blocks import choose_blocks
from forge.data.inductor.outcome import NotRewritten, RewriteReason
from forge.data.inductor.source import dotted, literal
from forge.data.inductor.steps import Launch, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.data.inductor.source import GeneratedKernel, Heuristic

AXES = {
    "Grid1D": ("x",),
    "Grid2D": ("x", "y"),
    "Grid2DWithYZOverflow": ("x", "y"),
    "Grid3D": ("x", "y", "z"),
}
"""Axes of the kinds of grid."""

MAX_Y = 65535
"""Most programs along y; the rest goes to z."""


def read_launch(
    made: ast.Call, kernels: dict[str, GeneratedKernel], value: Callable[[ast.expr], Value]
) -> Launch | None:
    """The launch that a call is; None for any other call. Raises NotRewritten."""
    options = {one.arg: one.value for one in made.keywords if one.arg}
    match made.func:
        case ast.Subscript(value=ast.Name(id=name), slice=grid) if name in kernels:
            return _launch(kernels[name], made.args, options, grid, value)
        case ast.Attribute(value=ast.Name(id=name), attr="run") if name in kernels:
            return _launch(kernels[name], made.args, options, options.pop("grid", None), value)
        case _:
            return None


def _launch(
    kernel: GeneratedKernel,
    args: list[ast.expr],
    options: dict[str, ast.expr],
    grid: ast.expr | None,
    value: Callable[[ast.expr], Value],
) -> Launch:
    options.pop("stream", None)
    arguments = _arguments(kernel, [value(one) for one in args], options, value)
    sizes = {name: _number(options[name]) for name in kernel.constexprs if name in options}
    num_warps = _number(options["num_warps"]) if "num_warps" in options else 4
    if kernel.heuristic is not None and not sizes:
        chosen = choose_blocks(kernel.heuristic)
        sizes, num_warps = _named(chosen.sizes, kernel), chosen.num_warps
    sizes |= kernel.fixed
    if kernel.constexprs - sizes.keys():
        missing = ", ".join(sorted(kernel.constexprs - sizes.keys()))
        raise NotRewritten(
            RewriteReason.UNKNOWN_HEURISTIC, f"{kernel.name}: no value for {missing}"
        )
    return Launch(
        kernel=kernel.name,
        arguments=arguments,
        sizes=sizes,
        grid=_grid(_numels(kernel, arguments, grid, value), sizes),
        num_warps=num_warps,
        num_stages=_number(options["num_stages"]) if "num_stages" in options else None,
    )


def _number(node: ast.expr) -> int:
    value = literal(node, None)
    if not isinstance(value, int) or value < 1:
        raise NotRewritten(RewriteReason.UNKNOWN_HEURISTIC, f"a size is {ast.unparse(node)[:60]}")
    return value


def _named(sizes: dict[str, int], kernel: GeneratedKernel) -> dict[str, int]:
    """Sizes under the kernel's names: older versions have RBLOCK for R0_BLOCK."""
    if "R0_BLOCK" in sizes and "R0_BLOCK" not in kernel.constexprs:
        sizes = {**sizes, "RBLOCK": sizes["R0_BLOCK"]}
    return {name: size for name, size in sizes.items() if name in kernel.constexprs}


def _arguments(
    kernel: GeneratedKernel,
    given: list[Value],
    options: dict[str, ast.expr],
    value: Callable[[ast.expr], Value],
) -> dict[str, Value]:
    names = kernel.arguments
    if len(given) < len(names) and kernel.heuristic is not None:
        names = [name for name in names if name not in _constants(kernel, kernel.heuristic)]
    arguments = dict(zip(names, given, strict=False))
    arguments |= {name: value(options[name]) for name in kernel.arguments if name in options}
    if len(given) > len(names) or set(names) - arguments.keys():
        detail = f"{kernel.name} takes {len(names)} arguments, gets {len(given)}"
        raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, detail)
    return arguments


def _constants(kernel: GeneratedKernel, heuristic: Heuristic) -> set[str]:
    """Parameters that a launch leaves out, which older versions number."""
    names = {str(place): name for place, name in enumerate(kernel.params)}
    return {names.get(key, key) for key in heuristic.constants}


def _numels(
    kernel: GeneratedKernel,
    arguments: dict[str, Value],
    grid: ast.expr | None,
    value: Callable[[ast.expr], Value],
) -> dict[str, ast.expr]:
    """Elements by axis, from the grid or from the arguments."""
    given: list[ast.expr]
    match grid:
        case ast.Call(func=function, args=given) if (
            dotted(function).rpartition(".")[2] == "grid" and 1 <= len(given) <= 3
        ):
            made = [value(one) for one in given]
            axes = dict(zip("xyz", reversed(made), strict=False))
        case None if kernel.heuristic is not None and kernel.heuristic.grid in AXES:
            axes = {axis: arguments.get(f"{axis}numel") for axis in AXES[kernel.heuristic.grid]}
        case _:
            kind = kernel.heuristic.grid if kernel.heuristic else ""
            kind = kind if grid is None else ast.unparse(grid)
            raise NotRewritten(RewriteReason.UNKNOWN_HEURISTIC, f"{kernel.name}: grid {kind[:60]}")
    found = {axis: one for axis, one in axes.items() if isinstance(one, ast.expr)}
    if len(found) != len(axes):
        raise NotRewritten(RewriteReason.UNKNOWN_HEURISTIC, f"{kernel.name}: a size is no number")
    return found


def _grid(numels: dict[str, ast.expr], sizes: dict[str, int]) -> list[ast.expr]:
    """Programs along each axis."""
    programs = [_ceil(numels[axis], sizes.get(f"{axis.upper()}BLOCK", 1)) for axis in numels]
    match programs:
        case [x, ast.Call(args=[ast.Constant(value=int(n)), ast.Constant(value=int(block))])]:
            num_y = -(-n // block)
        case [x, ast.Constant(value=int(num_y))]:
            pass
        case _:
            return programs
    if num_y <= MAX_Y:
        return programs
    num_z = -(-num_y // MAX_Y)
    return [x, ast.Constant(-(-num_y // num_z)), ast.Constant(num_z)]


def _ceil(numel: ast.expr, block: int) -> ast.expr:
    match numel:
        case _ if block == 1:
            return numel
        case ast.Constant(value=int(number)) if number <= block:
            return ast.Constant(min(number, 1))
        case _:
            function = ast.parse("triton.cdiv", mode="eval").body
            return ast.Call(func=function, args=[numel, ast.Constant(block)], keywords=[])
