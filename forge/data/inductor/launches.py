"""Reads a launch, `kernel.run(..., stream=...)`, and chooses its block sizes and warps.

Sizes are symbols, so that a choice follows from the kind of a kernel and not from the lengths that
were traced.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from forge.data.inductor.source import SCALAR, NotRewritten, RewriteReason
from forge.data.inductor.steps import Launch, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.data.inductor.source import GeneratedKernel, Heuristic

TEMPLATE_GRID = ("_grid_0", "_grid_1", "_grid_2")
"""Last arguments of a template's launch."""
POINTWISE_BLOCK = 256
"""Elements of a program."""
ROW_BLOCK = 1024
"""Elements of its row that a program's loop takes at a time."""
NEIGHBOURS = 32
"""Neighbouring sums of a program where the elements of each lie far apart."""


def read_launch(
    made: ast.Call, kernels: dict[str, GeneratedKernel], value: Callable[[ast.expr], Value]
) -> Launch | None:
    """The launch that a call is; None for any other call. Raises NotRewritten."""
    match made.func:
        case ast.Attribute(value=ast.Name(id=name), attr="run") if name in kernels:
            kernel = kernels[name]
        case _:
            return None
    is_template = kernel.heuristic.kind == "template"
    arguments = _arguments(kernel, [value(one) for one in made.args], value, is_template)
    grid = [arguments.pop(one) for one in TEMPLATE_GRID if is_template]
    grid = grid or [arguments.get("xnumel")]
    programs = [one for one in grid if isinstance(one, ast.expr)]
    if len(programs) != len(grid):
        raise NotRewritten(RewriteReason.UNKNOWN_HEURISTIC, f"{kernel.name}: a size is no number")
    if is_template:
        sizes: dict[str, int | ast.expr] = {**kernel.fixed}
        while len(programs) > 1 and ast.unparse(programs[-1]) == "1":
            programs.pop()
    else:
        chosen = _blocks(kernel.heuristic, programs[0])
        sizes = {name: size for name, size in chosen.items() if name in kernel.constexprs}
        sizes |= kernel.fixed | _rows(kernel, arguments)
        programs = [_ceil(programs[0], sizes.get("XBLOCK", 1))]
    return Launch(kernel=kernel.name, arguments=arguments, sizes=sizes, grid=programs)


def _arguments(
    kernel: GeneratedKernel,
    given: list[Value],
    value: Callable[[ast.expr], Value],
    is_template: bool,
) -> dict[str, Value]:
    scalars = [one for one in kernel.arguments if SCALAR.match(one)]
    names = [one for one in kernel.arguments if one not in scalars]
    names += TEMPLATE_GRID if is_template else ()
    if len(given) != len(names):
        detail = f"{kernel.name} takes {len(names)} arguments, gets {len(given)}"
        raise NotRewritten(RewriteReason.UNKNOWN_STATEMENT, detail)
    arguments = dict(zip(names, given, strict=True))
    return arguments | {name: value(ast.Name(id=name, ctx=ast.Load())) for name in scalars}


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


def _blocks(heuristic: Heuristic, numel: ast.expr) -> dict[str, int]:
    """Block sizes by the names of constexprs. Raises NotRewritten."""
    is_outer = heuristic.reduction_hint.startswith("OUTER")
    match heuristic.kind:
        case "pointwise":
            number = numel.value if isinstance(numel, ast.Constant) else POINTWISE_BLOCK
            assert isinstance(number, int)
            return {"XBLOCK": min(POINTWISE_BLOCK, 1 << max(number - 1, 0).bit_length())}
        case "reduction":
            return {
                "XBLOCK": NEIGHBOURS if is_outer else 1,
                "R0_BLOCK": NEIGHBOURS if is_outer else ROW_BLOCK,
            }
        case "persistent_reduction":
            return {"XBLOCK": NEIGHBOURS if is_outer else 1}
        case kind:
            raise NotRewritten(RewriteReason.UNKNOWN_HEURISTIC, kind)


def _ceil(numel: ast.expr, block: int | ast.expr) -> ast.expr:
    match numel:
        case _ if block == 1 or not isinstance(block, int):
            return numel
        case ast.Constant(value=int(number)) if number <= block:
            return ast.Constant(min(number, 1))
        case _:
            function = ast.parse("triton.cdiv", mode="eval").body
            return ast.Call(func=function, args=[numel, ast.Constant(block)], keywords=[])
