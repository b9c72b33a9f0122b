"""Triton's own pipeline from a checked module to a binary. Runs in a compiler child.

Shares of the stages on sm_90 (2026-11, Triton 3.9; softmax of one row, product with 128x128x64
blocks): parse and check 4 ms, 3 ms; TTIR and TTGIR 8, 64; LLIR 42, 350; PTX 5, 130; ptxas 28, 460:
ptxas takes a third of a small kernel and half of a large one. `Depth.ASSEMBLY` stops before it: a
judge without a card asks only whether a kernel compiles, and what ptxas alone refuses is rare.
`Depth.BOUNDED` compiles the kernel that `bounded.py` rewrites.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.backends.compiler import Language

from forge.evalpool.judge.compiler.backend import parse_options
from forge.evalpool.judge.compiler.binary import Binary, Depth, TensorMap
from forge.evalpool.judge.compiler.bounded import Unbounded, with_bounds
from forge.evalpool.judge.compiler.check import ParseFailed, parse
from forge.evalpool.judge.compiler.elf import read_elf
from forge.evalpool.judge.compiler.text import operations, without
from forge.evalpool.judge.program import dialect

if TYPE_CHECKING:
    from forge.evalpool.judge.compiler.backend import Target
    from forge.evalpool.judge.program.format import Kernel

WITHOUT_TENSOR_MAPS = 80
"""A compute capability whose passes rewrite descriptors to pointers."""
MAX_NESTED_LOCATIONS = 50
_LOCATION = re.compile(r"^#(loc\d*) = loc\((.*)\)$", re.MULTILINE)
_ALIAS = re.compile(r"#(loc\d*)")
_PLACE = re.compile(r'kernel\.ttir":(\d+):')
_AT_END = re.compile(r"loc\((.*)\)$")


class CompileFailed(Exception):
    """The compiler's words."""


def lower(module: Any, kernel: Kernel, target: Target, *, depth: Depth, key: str) -> Binary:
    """Compiles a checked module. TTIR passes run again, whatever the text says it went through.

    Raises:
        Refused: an option is out of bounds.
        CompileFailed: a stage refused the kernel.
    """
    options = parse_options(target, kernel.options)
    knobs.compilation.disable_line_info = True
    stages: dict[str, Any] = {}
    target.backend.add_stages(stages, options, Language.TRITON)
    names = list(stages)[:-1] if depth is Depth.ASSEMBLY else list(stages)
    facts: dict[str, Any] = {"target": target.gpu, **vars(options)}
    num_bounds, access_lines = 0, ()
    if depth is Depth.BOUNDED:
        module, num_bounds, access_lines = _bounded(kernel, target, options)
    product = module
    for name in names:
        try:
            product = stages[name](product, facts)
        except Exception as error:
            raise CompileFailed(f"{name}: {type(error).__name__}: {error}") from error
    binary = _binary(b"" if depth is Depth.ASSEMBLY else product, facts, kernel, target, key)
    return dataclasses.replace(binary, num_bounds=num_bounds, access_lines=access_lines)


def _bounded(kernel: Kernel, target: Target, options: Any) -> tuple[Any, int, tuple[int, ...]]:
    """The kernel with its accesses checked, the number of its bounds and the lines of its accesses.

    Calls are inlined, and descriptors become pointers, as on targets without tensor maps.
    """
    text = without(kernel.ttir, dialect.STRIPPED).replace("noinline = true", "noinline = false")
    module = parse(text, target)
    try:
        if target.gpu.backend == "cuda":
            target.backend.make_ttir(module, {}, options, WITHOUT_TENSOR_MAPS)
        else:
            target.backend.make_ttir(module, {}, options)
        bounded = with_bounds(module.str_nodebug())
        lines = original_lines(str(module))
        made = parse(bounded.text, target)
    except (RuntimeError, ParseFailed, Unbounded) as error:
        raise CompileFailed(f"no bounds: {error}") from error
    rows = [row for row, _ in operations(module.str_nodebug())]
    by_row = dict(zip(rows, lines, strict=True))
    return made, bounded.num_pointers, tuple(by_row[row] for row in bounded.rows)


def original_lines(printed: str) -> list[int]:
    """Line of the parsed text of each operation of a module printed with locations; 0 where a
    location has none, or stands behind the regions of its operation."""
    known = {match[1]: match[2] for match in _LOCATION.finditer(printed)}

    def line(location: str, depth: int) -> int:
        found = _PLACE.search(location)
        if found:
            return int(found[1])
        inner = (known.get(name, "") for name in _ALIAS.findall(location))
        return next((line(one, depth - 1) for one in inner if depth and one), 0)

    rows = printed.split("\n")
    places = (_AT_END.search(rows[row - 1]) for row, _ in operations(printed))
    return [line(place[1], MAX_NESTED_LOCATIONS) if place else 0 for place in places]


def _binary(code: bytes, facts: dict[str, Any], kernel: Kernel, target: Target, key: str) -> Binary:
    x, y, z = facts.get("cluster_dims") or (1, 1, 1)
    if x * y * z == 1:  # Triton 3.6 and later have no such option: a cluster is its blocks in a row
        x = facts["num_ctas"]
    elf = read_elf(code) if code else None
    return Binary(
        key=key,
        target=target.name,
        name=facts["name"],
        code=code,
        shared_bytes=facts.get("shared") or 0,
        num_warps=facts["num_warps"],
        num_ctas=facts["num_ctas"],
        cluster_dims=(x, y, z),
        global_scratch_bytes=facts.get("global_scratch_size") or 0,
        global_scratch_alignment=facts.get("global_scratch_align") or 1,
        profile_scratch_bytes=facts.get("profile_scratch_size") or 0,
        profile_scratch_alignment=facts.get("profile_scratch_align") or 1,
        tensor_maps=tuple(_tensor_map(one) for one in facts.get("tensordesc_meta") or ()),
        tensor_memory=facts.get("tmem_size") or 0,
        num_registers=elf.num_registers if elf else 0,
        num_spills=elf.num_spills if elf else 0,
        launch_cooperative_grid=kernel.options.launch_cooperative_grid,
        launch_pdl=kernel.options.launch_pdl,
    )


def _tensor_map(facts: dict[str, Any]) -> TensorMap:
    try:
        return TensorMap(
            swizzle=facts["swizzle"],
            elem_size=facts["elem_size"],
            elem_type=facts["elem_type"],
            block_size=tuple(facts["block_size"]),
            fp4_padded=bool(facts["fp4_padded"]),
        )
    except KeyError as error:
        raise CompileFailed(f"a tensor map of another kind: no {error}") from error
