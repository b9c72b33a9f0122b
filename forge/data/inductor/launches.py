"""Reads a launch: `kernel[grid(n)](...)` with its sizes, or `kernel.run(..., stream=...)`.

Block sizes and warps that a launch does not give are those that Inductor's heuristics choose on an
NVIDIA GPU. Where Inductor would time several configurations, the first is taken; for a persistent
reduction the largest block that still leaves `MIN_PROGRAMS` programs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from forge.data.inductor.outcome import NotRewritten, RewriteReason
from forge.data.inductor.source import SCALAR, dotted, literal
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

TEMPLATE_GRID = ("_grid_0", "_grid_1", "_grid_2")
"""Last arguments of a template's launch."""

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
    sizes: dict[str, int | ast.expr] = {
        name: _number(options[name]) for name in kernel.constexprs if name in options
    }
    num_warps = _number(options["num_warps"]) if "num_warps" in options else 4
    if kernel.heuristic is not None and kernel.heuristic.kind == "template":
        num_warps = kernel.heuristic.num_warps
    elif kernel.heuristic is not None and not sizes:
        chosen = choose_blocks(kernel.heuristic)
        sizes |= _named(chosen.sizes, kernel)
        num_warps = chosen.num_warps
    sizes |= kernel.fixed
    sizes |= _rows(kernel, arguments)
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


def _rows(kernel: GeneratedKernel, arguments: dict[str, Value]) -> dict[str, ast.expr]:
    """Blocks that hold a whole row, where the row's length is an expression."""
    found: dict[str, ast.expr] = {}
    for name in kernel.fixed:
        length = arguments.get(f"{name.removesuffix('BLOCK').lower()}numel")
        if (
            name.startswith("R")
            and isinstance(length, ast.expr)
            and not isinstance(length, ast.Constant)
        ):
            function = ast.parse("triton.next_power_of_2", mode="eval").body
            found[name] = ast.Call(func=function, args=[length], keywords=[])
    return found


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
    scalars = [one for one in kernel.arguments if SCALAR.match(one)]
    names = [one for one in kernel.arguments if one not in scalars]
    if kernel.heuristic is not None and kernel.heuristic.kind == "template":
        names = [*names, *TEMPLATE_GRID]
    if len(given) < len(names) and kernel.heuristic is not None:
        names = [name for name in names if name not in _constants(kernel, kernel.heuristic)]
    arguments = dict(zip(names, given, strict=False))
    arguments |= {name: value(options[name]) for name in kernel.arguments if name in options}
    arguments |= {name: value(ast.Name(id=name, ctx=ast.Load())) for name in scalars}
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
        case None if kernel.heuristic is not None and kernel.heuristic.kind == "template":
            axes = {
                axis: arguments.pop(one) for axis, one in zip("xyz", TEMPLATE_GRID, strict=True)
            }
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


def _grid(numels: dict[str, ast.expr], sizes: dict[str, int | ast.expr]) -> list[ast.expr]:
    """Programs along each axis."""
    if "XBLOCK" not in sizes and "BLOCK" in " ".join(sizes):
        while len(numels) > 1 and ast.unparse([*numels.values()][-1]) == "1":
            numels.popitem()
        return [*numels.values()]
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


def _ceil(numel: ast.expr, block: int | ast.expr) -> ast.expr:
    match numel:
        case _ if block == 1 or not isinstance(block, int):
            return numel
        case ast.Constant(value=int(number)) if number <= block:
            return ast.Constant(min(number, 1))
        case _:
            function = ast.parse("triton.cdiv", mode="eval").body
            return ast.Call(func=function, args=[numel, ast.Constant(block)], keywords=[])


MAX_BLOCK = {"x": 4096, "y": 1024, "z": 1024}
MAX_GRID = {"x": 2**31 - 1, "y": 65535, "z": 65535}
MAX_REDUCTION_BLOCK = 2048
MAX_PERSISTENT = 4096
"""Most elements of a persistent reduction's block."""
MIN_PROGRAMS = 128
"""About as many programs as a large GPU has multiprocessors."""
TILES = {1: (256,), 2: (32, 32), 3: (16, 16, 16)}
"""Block of a pointwise kernel before it is fitted, by number of axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A configuration."""

    sizes: dict[str, int]
    """By the name of the constexpr: `XBLOCK`, `R0_BLOCK`."""
    num_warps: int


def choose_blocks(heuristic: Heuristic) -> Blocks:
    """The configuration of a decorated kernel.

    Raises:
        NotRewritten: a decorator or axes that no rule here covers.
    """
    axes = set(heuristic.size_hints)
    is_reduction = "x" in axes and axes <= {"x", "r0_"}
    match heuristic.kind:
        case "pointwise" if axes in ({"x"}, {"x", "y"}, {"x", "y", "z"}):
            return _pointwise(heuristic.size_hints)
        case "reduction" if is_reduction:
            return _reduction(heuristic)
        case "persistent_reduction" if is_reduction:
            return _persistent(heuristic)
        case _:
            detail = f"{heuristic.kind} over {', '.join(sorted(axes)) or 'no axes'}"
            raise NotRewritten(RewriteReason.UNKNOWN_HEURISTIC, detail)


def _pointwise(hints: dict[str, int]) -> Blocks:
    numel = prod(hints.values())
    tile = TILES[len(hints)] if len(hints) > 1 else (max(256, min(numel // 128, 1024)),)
    block = dict(zip("xyz", tile, strict=False))
    target = prod(tile)
    if numel < target:
        target //= 8
    block = {axis: min(size, hints[axis]) for axis, size in block.items()}
    for axis in block:
        limit = min(hints[axis], MAX_BLOCK[axis])
        while block[axis] < limit and (
            block[axis] * MAX_GRID[axis] < hints[axis] or prod(block.values()) < target
        ):
            block[axis] *= 2
    num_elements = prod(block.values())
    num_warps = _warps(num_elements // 256, least=1, most=8)
    sizes = {f"{axis.upper()}BLOCK": size for axis, size in block.items()}
    return Blocks(sizes=sizes, num_warps=max(num_warps, 4) if num_elements >= 128 else num_warps)


def _reduction(heuristic: Heuristic) -> Blocks:
    x, r = heuristic.size_hints["x"], heuristic.size_hints.get("r0_", 1)
    is_heavy = x >= 1024 and heuristic.num_loads + heuristic.num_reductions >= 10
    largest = MAX_REDUCTION_BLOCK // 2 if is_heavy else MAX_REDUCTION_BLOCK
    num_warps = None
    match heuristic.reduction_hint:
        case "OUTER":
            x_block, r_block, num_warps = _outer(x, r, heuristic.num_loads)
        case "OUTER_TINY":
            x_block, r_block = _tiny(r), min(r, largest)
        case _:
            x_block, r_block = (2 if r <= 2048 else 1), min(r, largest)
    return _fit(heuristic, x_block, r_block, is_heavy=is_heavy, num_warps=num_warps)


def _outer(x: int, r: int, num_loads: int) -> tuple[int, int, int | None]:
    """Blocks of x and r, and warps, where neighbours along the reduction lie far apart."""
    if x <= 1024:
        return max(min(x // 128, 8), 2), min(r, 64), None
    if x // 4096 <= 8:
        return 16, 32, None
    x_block = max(min(256, _power(x // 4096)), 64)
    if num_loads < 4 or r <= 128:
        return x_block, 512 // x_block, None
    return min(x_block, 32), (64 if r >= 2048 else 32), 4


def _tiny(r: int) -> int:
    return 2 * (256 // r) if r <= 256 else 1


def _persistent(heuristic: Heuristic) -> Blocks:
    x, r = heuristic.size_hints["x"], heuristic.size_hints.get("r0_", 1)
    options = [b for b in (1, 8, 32, 128) if b == 1 or (r * b <= MAX_PERSISTENT and b <= x)]
    num_warps = None
    match heuristic.reduction_hint:
        case "INNER" if r >= 256:
            x_block = 1
            if r <= 1024 and x // 8 >= MIN_PROGRAMS:
                x_block, num_warps = min(1024 // r, 8), 1
        case "OUTER":
            x_block = options[-1]
        case "OUTER_TINY":
            x_block = _tiny(r)
        case _:
            x_block = max((b for b in options if x // b >= MIN_PROGRAMS), default=1)
    is_heavy = heuristic.reduction_hint != "OUTER_TINY"
    made = _fit(heuristic, x_block, r, is_heavy=is_heavy, num_warps=num_warps)
    return Blocks(sizes={"XBLOCK": made.sizes["XBLOCK"]}, num_warps=made.num_warps)


def _fit(
    heuristic: Heuristic, x_block: int, r_block: int, *, is_heavy: bool, num_warps: int | None
) -> Blocks:
    """Blocks that are no larger than the axes, nor much smaller than asked for."""
    hints = heuristic.size_hints
    r_hint = hints.get("r0_", 1)
    r, x = min(r_block, r_hint), min(x_block, hints["x"])
    target = x * r
    if hints["x"] * r_hint < target:
        target //= 8
    while x < hints["x"] and x * r < target:
        x *= 2
    while r < r_hint and x * r < target:
        r *= 2
    if num_warps is None:
        is_inner = heuristic.reduction_hint == "INNER"
        wanted = (r_block if is_inner else x * r) // 128
        most = 16 if r_block <= 8192 else 32
        num_warps = _warps(wanted, least=2, most=most // 2 if is_heavy else most)
    return Blocks(sizes={"XBLOCK": x, "R0_BLOCK": r}, num_warps=num_warps)


def _warps(wanted: int, *, least: int, most: int) -> int:
    return _power(min(max(wanted, least), most))


def _power(number: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(number - 1, 0).bit_length()
