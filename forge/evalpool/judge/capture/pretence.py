"""Makes torch answer as on a machine that has the target's GPU.

Works with torch's CPU build and with a CUDA build that sees no GPU. A child that captures a
candidate stays patched; the zygote takes the patches back after its warm-up (`Pretence.undo`).
Tensors are copied by functions of ours: torch's methods take the storage apart, and fake tensors
have none.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton.backends.compiler import GPUTarget

REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""c10's table of device guards, by device type: `c10::impl::device_guard_impl_registry`."""

DEFAULTS: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3", "multi_processor_count": 132, "total_memory": 80 << 30,
    "shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448,
    "regs_per_multiprocessor": 65536, "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024, "L2_cache_size": 50 << 20,
}  # fmt: skip
"""Torch's properties of an H100, which are the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The GPU that a candidate is captured for."""

    backend: str = "cuda"
    arch: int | str = 90
    warp_size: int = 32
    properties: dict[str, Any] = field(default_factory=dict[str, Any])
    """Torch's, where they are not the default."""

    @property
    def target(self) -> str:
        """`cuda:90:32`: backend, architecture and warp size."""
        return f"{self.backend}:{self.arch}:{self.warp_size}"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, as torch gives it; (9, 0) for an AMD card."""
        return divmod(self.arch, 10) if isinstance(self.arch, int) else (9, 0)

    def triton_target(self) -> GPUTarget:
        return GPUTarget(self.backend, self.arch, self.warp_size)

    def triton_properties(self) -> dict[str, int]:
        """Properties as the driver's `get_device_properties` returns them."""
        known = self.torch_properties()
        return {
            "max_shared_mem": known.shared_memory_per_block_optin,
            "max_num_regs": known.regs_per_multiprocessor,
            "multiprocessor_count": known.multi_processor_count,
            "warpSize": self.warp_size,
        }

    def torch_properties(self) -> SimpleNamespace:
        """Properties as `torch.cuda.get_device_properties` returns them, but what tells one card
        from another of its kind."""
        major, minor = self.capability
        known = DEFAULTS | self.properties
        return SimpleNamespace(
            major=major,
            minor=minor,
            warp_size=self.warp_size,
            shared_memory_per_multiprocessor=known["shared_memory_per_block_optin"] + 1024,
            gcnArchName=str(self.arch) if self.backend == "hip" else "",
            **known,
        )


def make_fake_mode() -> Any:
    """The mode of fake tensors; it creates no GPU context."""
    pretence = Pretence()
    pretence.set(torch.cuda, "is_available", lambda: False)
    try:
        return fake_tensor.FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    finally:
        pretence.undo()


def ensure_device_guard() -> None:
    """Gives CUDA a device guard that does nothing.

    Without one, slices and `.contiguous()` of CUDA tensors fail on torch's CPU build. Torch has
    such a guard, and replaces a guard that counts no devices by it. The guard of lazy tensors
    counts none, so it is registered for CUDA first: the CPU build has no other, and the guard of a
    CUDA build would load the driver to count, which starts a thread.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    kinds: Any = vars(torch.autograd)["DeviceType"]
    registry = (ctypes.c_void_p * 20).in_dll(library, REGISTRY)
    registry[kinds.CUDA.value] = registry[kinds.Lazy.value]
    torch._C._ensureCUDADeviceGuardSet()


class Pretence:
    """Patches of torch that can be undone."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute, or a value of a dict."""
        if isinstance(owner, dict):
            self._before.append((owner, name, owner.get(name, self)))
            owner[name] = value
        else:
            self._before.append((owner, name, vars(owner).get(name, self)))
            setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if isinstance(owner, dict):
                owner.pop(name) if value is self else owner.update({name: value})
            elif value is self:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def begin(self, card: Card) -> None:
        """Makes `torch.cuda` answer as with this card."""
        torch._C._set_only_lift_cpu_tensors(True)
        self.set(fake_tensor, "init_gpu_context", lambda *args: None)
        for name, value in _answers(card).items():
            self.set(torch.cuda, name, value)
        self.set(torch._C, "_cuda_getCurrentRawStream", lambda device=0: 0)
        self.set(torch._C, "_cuda_getDevice", lambda: 0)
        self.set(torch._C, "_cuda_setDevice", lambda device: None)
        self.set(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
        self.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
        self.set(torch.nn.Module, "_apply", _apply)
        self.set(torch, "compile", _as_written)
        self.set(torch.nn.Module, "compile", lambda module, *args, **kwargs: None)
        if card.backend == "hip":
            self.set(torch.version, "hip", torch.version.hip or "6.4.0")
        else:
            self.set(torch.version, "cuda", torch.version.cuda or "12.8")


def _as_written(model: Any = None, **kwargs: Any) -> Any:
    """Replaces `torch.compile`: the operations are recorded as they are written."""
    options: dict[str, Any] = kwargs.get("options") or {}
    if any(callable(one) for one in (*kwargs.values(), *options.values())):
        raise TypeError("torch.compile with a backend or a pass of its own is not judged")
    return (lambda function: function) if model is None else model


def _apply(module: Any, fn: Any, recurse: bool = True) -> Any:
    """`Module._apply` without swapping tensors, which torch does to fake parameters and which fails
    where anything refers to them weakly."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is None or (made := fn(parameter)) is parameter:
            continue
        if isinstance(parameter, FakeTensor) and isinstance(made, FakeTensor):
            parameter.data = made
        else:
            module._parameters[name] = torch.nn.Parameter(made, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else fn(buffer)
    return module


class Guard(nullcontext[Any]):
    """`torch.cuda.device(...)`, `device_of`: changes nothing."""

    idx = prev_idx = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(self)


class Generator:
    """The card's random generator, whose state `torch.utils.checkpoint` keeps: nothing is drawn."""

    device = torch.device("cuda", 0)

    def get_state(self) -> torch.Tensor:
        """[16] uint8: seed and offset."""
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Changes nothing."""


def _answers(card: Card) -> dict[str, Any]:
    properties = card.torch_properties()
    zero = lambda *args, **kwargs: 0  # noqa: E731
    nothing = lambda *args, **kwargs: None  # noqa: E731
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "is_current_stream_capturing": lambda: False,
        "default_generators": (Generator(),),
    }
    zeros = ("current_device", "_exchange_device", "_maybe_exchange_device")
    nothings = (
        *("init", "_lazy_init", "set_device", "empty_cache", "synchronize"),
        *("manual_seed", "manual_seed_all"),
    )
    answers |= dict.fromkeys(zeros, zero) | dict.fromkeys(nothings, nothing)
    return answers | dict.fromkeys(("device", "device_of", "_DeviceGuard"), Guard)


def deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Any:
    """A tensor of its own with the same content; a parameter of a parameter. A tensor that occurs
    twice in what is copied is copied once; one that shares memory with another does so no more."""
    if id(tensor) not in memo:
        made: Any = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = made
    return memo[id(tensor)]


# --- Inductor's generated code, as KernelBook shows it: its kernels are plain Triton; allocations
# and external kernels become aten operations. Names that later versions of torch removed are put
# back.


MARK = "_inductor"
"""Text of a source that imports Inductor."""
GUARDS = "torch._C._dynamo"
"""Text of a source that uses its allocations, with it or without."""


def inductor_patches(code: str) -> Iterator[tuple[Any, str, Any]]:
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
