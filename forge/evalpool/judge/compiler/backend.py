"""Triton's backend for one target: a kernel's options, and its pipeline to a binary.

Runs in a compiler child.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton import knobs
from triton._C.libtriton import ir, nvidia, passes
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import make_backend

from forge.evalpool.judge.compiler.binary import Binary, TensorMap, read_elf
from forge.evalpool.judge.compiler.text import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.evalpool.judge.program.format import Kernel, Options

_TARGET = re.compile(r"(cuda):(\d{2,3}):(\d+)|(hip):(gfx[0-9a-f]{3,4}):(\d+)")
PTX_VERSION = 86
"""For the allocation of shared memory alone: it asks no ptxas."""
BOUNDS = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_stages": range(17),
    "maxnreg": (None, *range(16, 257)),
    "default_dot_input_precision": ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"),
    "max_num_imprecise_acc_default": (None, *range(0, 1 << 12), 1 << 30),
    "waves_per_eu": range(33),
    "matrix_instr_nonkdim": (0, 4, 16, 32),
    "kpack": (1, 2),
    "enable_fp_fusion": (False, True),
}
"""The values that each option may have."""


class UnknownTarget(Exception):
    """A target that this Triton has no backend for."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target with Triton's backend for it."""

    name: str
    """`cuda:90:32`"""
    gpu: GPUTarget
    backend: Any


def open_target(name: str) -> Target:
    """Raises UnknownTarget."""
    found = _TARGET.fullmatch(name)
    if found is None:
        raise UnknownTarget(f"{name!r} is no target, such as cuda:90:32 or hip:gfx942:64")
    kind, arch, warp_size = (one for one in found.groups() if one is not None)
    gpu = GPUTarget(kind, int(arch) if kind == "cuda" else arch, int(warp_size))
    try:
        return Target(name=name, gpu=gpu, backend=make_backend(gpu))
    except Exception as error:
        raise UnknownTarget(f"{name}: {error}") from error


def load_dialects(context: Any, target: Target) -> None:
    """Registers Triton's dialects and those of the target's backend."""
    ir.load_dialects(context)
    target.backend.load_dialects(context)


def check_options(options: Options) -> None:
    """Raises Refused where a value is not one that the option may have."""
    for name, allowed in BOUNDS.items():
        value = getattr(options, name)
        if not any(type(one) is type(value) and one == value for one in (allowed)):
            raise Refused("", f"option {name} is {value!r}")


def parse_options(target: Target, options: Options) -> Any:
    """Returns the backend's options: ours, and its own defaults for all else.

    Never from the program: further arguments of ptxas, files that replace a stage, libraries,
    debugging and instrumentation.
    """
    check_options(options)
    given: Mapping[str, Any] = {
        **{name: getattr(options, name) for name in BOUNDS},
        "debug": False,
        "sanitize_overflow": False,
    }
    return target.backend.parse_options(dict(given))


class CompileFailed(Exception):
    """A stage of the compiler refused the kernel."""


def lower(module: Any, kernel: Kernel, target: Target, *, key: str) -> Binary:
    """Compiles a checked module. TTIR passes run again, whatever the text says it went through.

    Raises:
        Refused: an option is out of bounds.
        CompileFailed: a stage refused the kernel.
    """
    code, facts = _staged(module, kernel, target, until="")
    return _binary(code, facts, kernel, target, key)


def shared_bytes(module: Any, kernel: Kernel, target: Target) -> int:
    """Shared memory of a block of a checked module's kernel. Compiles no further than it takes.

    Raises: as `lower`.
    """
    allocate: Any = getattr(nvidia.passes.ttgpuir, "add_allocate_shared_memory_nv", None)
    if target.gpu.backend != "cuda" or allocate is None:
        return int(_staged(module, kernel, target, until="llir")[1].get("shared") or 0)
    # The start of Triton's own stage `llir`, without the seconds that LLVM takes for large tiles.
    product, _ = _staged(module, kernel, target, until="ttgir")
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    passes.convert.add_scf_to_cf(manager)
    passes.gluon.add_inliner(manager)
    allocate(manager, target.gpu.arch, PTX_VERSION)
    manager.run(product, "shared memory")
    return int(product.get_int_attr("ttg.shared"))


def _staged(
    module: Any, kernel: Kernel, target: Target, *, until: str
) -> tuple[Any, dict[str, Any]]:
    """Product of the compiler's stages up to one of them, with the facts that they found."""
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
        if name == until:
            break
    return product, facts


def _binary(code: bytes, facts: dict[str, Any], kernel: Kernel, target: Target, key: str) -> Binary:
    elf = read_elf(code)
    return Binary(
        key=key,
        target=target.name,
        name=facts["name"],
        code=code,
        shared_bytes=facts.get("shared") or 0,
        num_warps=facts["num_warps"],
        global_scratch_bytes=facts.get("global_scratch_size") or 0,
        global_scratch_alignment=facts.get("global_scratch_align") or 1,
        profile_scratch_bytes=facts.get("profile_scratch_size") or 0,
        profile_scratch_alignment=facts.get("profile_scratch_align") or 1,
        tensor_maps=tuple(_tensor_map(one) for one in facts.get("tensordesc_meta") or ()),
        tensor_memory=facts.get("tmem_size") or 0,
        num_registers=elf.num_registers,
        num_spills=elf.num_spills,
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
