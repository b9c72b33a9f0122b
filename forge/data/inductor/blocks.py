"""Block sizes and warps of a kernel whose launch does not give them, as Inductor's heuristics
choose them on an NVIDIA GPU.

Where Inductor would time several configurations, the first is taken; for a persistent reduction the
largest block that still leaves `MIN_PROGRAMS` programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from forge.data.inductor.outcome import NotRewritten, RewriteReason

if TYPE_CHECKING:
    from forge.data.inductor.source import Heuristic

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
