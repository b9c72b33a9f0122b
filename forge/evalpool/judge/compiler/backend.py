"""Triton's backend for one target, and a kernel's options as it takes them. In a compiler child."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from forge.evalpool.judge.compiler.text import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.evalpool.judge.program.format import Options

_TARGET = re.compile(r"(cuda):(\d{2,3}):(\d+)|(hip):(gfx[0-9a-f]{3,4}):(\d+)")
MAX_CLUSTER = 16
BOUNDS = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "num_ctas": (1, 2, 4, 8, 16),
    "num_stages": range(17),
    "maxnreg": (None, *range(16, 257)),
    "default_dot_input_precision": ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"),
    "max_num_imprecise_acc_default": (None, *range(0, 1 << 12), 1 << 30),
    "waves_per_eu": range(33),
    "matrix_instr_nonkdim": (0, 4, 16, 32),
    "kpack": (1, 2),
    "enable_fp_fusion": (False, True),
    "launch_cooperative_grid": (False, True),
    "launch_pdl": (False, True),
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
    sizes = options.cluster_dims
    if len(sizes) != 3 or any(type(one) is not int or not 1 <= one <= MAX_CLUSTER for one in sizes):
        raise Refused("", f"option cluster_dims is {sizes!r}")


def parse_options(target: Target, options: Options) -> Any:
    """Returns the backend's options: ours, and its own defaults for all else.

    Never from the program: further arguments of ptxas, files that replace a stage, libraries,
    debugging and instrumentation.
    """
    check_options(options)
    given: Mapping[str, Any] = {
        **{name: getattr(options, name) for name in BOUNDS},
        "cluster_dims": options.cluster_dims,
        "debug": False,
        "sanitize_overflow": False,
    }
    return target.backend.parse_options(dict(given))
