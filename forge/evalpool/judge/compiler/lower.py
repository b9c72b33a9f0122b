"""Triton's own pipeline from a checked module to a binary. Runs in a compiler child.

Shares of the stages on sm_90 (2026-11, Triton 3.9; softmax of one row, product with 128x128x64
blocks): parse and check 4 ms, 3 ms; TTIR and TTGIR 8, 64; LLIR 42, 350; PTX 5, 130; ptxas 28, 460.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton import knobs
from triton.backends.compiler import Language

from forge.evalpool.judge.compiler.backend import parse_options
from forge.evalpool.judge.compiler.binary import Binary, TensorMap
from forge.evalpool.judge.compiler.elf import read_elf

if TYPE_CHECKING:
    from forge.evalpool.judge.compiler.backend import Target
    from forge.evalpool.judge.program.format import Kernel


class CompileFailed(Exception):
    """A stage of the compiler refused the kernel."""


def lower(module: Any, kernel: Kernel, target: Target, *, key: str) -> Binary:
    """Compiles a checked module. TTIR passes run again, whatever the text says it went through.

    Raises:
        Refused: an option is out of bounds.
        CompileFailed: a stage refused the kernel.
    """
    options = parse_options(target, kernel.options)
    knobs.compilation.disable_line_info = True
    stages: dict[str, Any] = {}
    target.backend.add_stages(stages, options, Language.TRITON)
    facts: dict[str, Any] = {"target": target.gpu, **vars(options)}
    product = module
    for name, stage in stages.items():
        try:
            product = stage(product, facts)
        except Exception as error:
            raise CompileFailed(f"{name}: {type(error).__name__}: {error}") from error
    return _binary(product, facts, kernel, target, key)


def _binary(code: bytes, facts: dict[str, Any], kernel: Kernel, target: Target, key: str) -> Binary:
    x, y, z = facts.get("cluster_dims") or (1, 1, 1)
    if x * y * z == 1:  # Triton 3.6 and later have no such option: a cluster is its blocks in a row
        x = facts["num_ctas"]
    elf = read_elf(code)
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
        num_registers=elf.num_registers,
        num_spills=elf.num_spills,
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
