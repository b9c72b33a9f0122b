"""Replaces parts of torch and Inductor while a problem is traced, until a stack is left.

Operations of torch are written so that they bear symbolic sizes and leave no library call. Rows are
reduced by loops. Questions about a card are answered as an H100 would, where there is none:
Inductor generates code before it compiles it, so that fake CUDA tensors are enough.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.utils._triton
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import lowering
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonKernelOverrides
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses import fake_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

from forge.data.inductor.compiler.templates import FLOATS

NUMBERS = ("groups", "num_groups", "num_heads", "padding_idx", "kernel_size", "stride", "dilation")
"""Attributes of modules that are no sizes, whatever their values are."""
SMALL = 16
"""Largest attribute that is taken for no size."""


def plain_operations(stack: contextlib.ExitStack) -> None:
    """Replaces operations until the stack is left."""
    stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
    stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, is_fast)
    for function in (_layer_norm, _instance_norm, _interpolate, _relu6, _linear):
        name = function.__name__.removeprefix("_")
        stack.enter_context(mock.patch.object(functional, name, function))
    for rank in (1, 2, 3):
        for kind in ("max", "avg"):
            name = f"{kind}_pool{rank}d"
            pool = _pool(getattr(functional, name), rank, is_max=kind == "max")
            stack.enter_context(mock.patch.object(functional, name, pool))


def _pool(usual: Callable[..., Any], rank: int, *, is_max: bool) -> Callable[..., Any]:
    """A pool as one operation, which a template of `templates.py` computes."""

    def made(input: torch.Tensor, *window: Any) -> Any:
        if input.dim() != rank + 2 or input.dtype not in FLOATS:
            return None
        each = [list(one) * (rank // len(one)) if isinstance(one, tuple | list) else [one] * rank
                for one in window]  # fmt: skip
        operations = torch.ops.forge_data
        return (operations.max_pool if is_max else operations.avg_pool)(input, *each)

    def max_pool(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        step, is_plain = stride or kernel_size, not (ceil_mode or return_indices)
        found = made(input, kernel_size, step, padding, dilation) if is_plain else None
        if found is None:
            found = usual(
                input, kernel_size, stride, padding, dilation, ceil_mode=ceil_mode,
                return_indices=return_indices,
            )  # fmt: skip
        return found

    def avg_pool(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        is_plain = count_include_pad and not ceil_mode and divisor_override is None
        found = made(input, kernel_size, stride or kernel_size, padding, 1) if is_plain else None
        rest = (ceil_mode, count_include_pad, *([divisor_override] if rank > 1 else []))
        return usual(input, kernel_size, stride, padding, *rest) if found is None else found

    return max_pool if is_max else avg_pool


def _layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    shape = input.shape[-len(normalized_shape) :]
    return torch.layer_norm(input, shape, weight, bias, eps, False)


def _instance_norm(
    input: torch.Tensor, running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None, weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    ones = [1] * (input.dim() - 2)
    if use_input_stats or running_mean is None or running_var is None:
        axes = list(range(2, input.dim()))
        var, mean = torch.var_mean(input, axes, correction=0, keepdim=True)
    else:
        mean, var = running_mean.view(1, -1, *ones), running_var.view(1, -1, *ones)
    made = (input - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        made = made * weight.view(1, -1, *ones)
    return made if bias is None else made + bias.view(1, -1, *ones)


LINEAR = functional.linear


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """More axes than two are rows: torch's own way asks for their lengths as numbers."""
    if input.dim() < 3:
        return LINEAR(input, weight, bias)
    rows = LINEAR(input.reshape(-1, input.shape[-1]), weight, bias)
    return rows.view(*input.shape[:-1], weight.shape[0])


INTERPOLATE = functional.interpolate


def _interpolate(
    input: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    *rest: Any, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Nearest neighbours at a whole factor are copies; their places take fp64 otherwise."""
    rank = input.dim() - 2
    factors = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * rank
    if mode != "nearest" or size is not None or not all(_is_whole(one) for one in factors):
        return INTERPOLATE(input, size, scale_factor, mode, *rest, **options)
    made = input
    for axis, factor in enumerate(factors, start=2):
        made = made.unsqueeze(axis + 1)
        sizes = [*made.shape]
        sizes[axis + 1] = int(factor)
        made = made.expand(sizes).flatten(axis, axis + 1)
    return made


def _is_whole(factor: Any) -> bool:
    return isinstance(factor, int | float) and factor >= 1 and factor == int(factor)


def _relu6(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return functional.hardtanh(input, 0.0, 6.0, inplace)


def attributes(
    model: torch.nn.Module, new: dict[int, Any]
) -> list[tuple[dict[str, Any], str, Any]]:
    """Numbers that modules keep and that are lengths of their parameters, as symbols; `new` has
    tensors with symbolic sizes, by the identity of the model's own."""
    found: list[tuple[dict[str, Any], str, Any]] = []
    every = _lengths(model, new)
    for owner in model.modules():
        own = _lengths(owner, new)
        for name, value in owner.__dict__.items():
            if type(value) is int and value > SMALL and name not in NUMBERS:
                symbol = own.get(value, every.get(value))
                if symbol is not None:
                    found.append((owner.__dict__, name, symbol))
    return found


def _lengths(owner: torch.nn.Module, new: dict[int, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for one in [*owner.parameters(), *owner.buffers()]:
        if id(one) in new:
            for length, symbol in zip(one.shape, new[id(one)].shape, strict=True):
                if isinstance(symbol, torch.SymInt):
                    found.setdefault(int(length), symbol)
    return found


def reductions(stack: contextlib.ExitStack) -> None:
    """Reduces rows by loops, which are right and compile at every size, until the stack is left; a
    variance is two of them. A row that is sorted has no answer."""
    never = staticmethod(lambda *_: False)
    stack.enter_context(
        mock.patch.object(InductorChoices, "should_use_persistent_reduction", never)
    )
    stack.enter_context(mock.patch.object(lowering, "use_two_step_variance", return_value=True))
    short = staticmethod(lambda x: f"libdevice.atan({x})")  # for twenty lines, some of assembly
    stack.enter_context(mock.patch.object(TritonKernelOverrides, "atan", short))


def pretend(stack: contextlib.ExitStack) -> None:
    """Answers Inductor's questions about a card until the stack is left."""
    for owner, name, value in _answers():
        stack.enter_context(mock.patch.object(owner, name, value))


class _OnCpu(TorchDispatchMode):
    """Makes on the CPU what would be made on the card."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if getattr(given.get("device"), "type", "") == "cuda":
            given["device"] = torch.device("cpu")
        return func(*args, **given)


class _FolderOnCpu(joint_graph.UniformValueConstantFolder):
    """Inductor's folding of constants, which runs small operations."""

    def run(self) -> Any:
        with _OnCpu():
            return super().run()


def _answers() -> Iterator[tuple[Any, str, Any]]:
    """Attributes to replace: owner, name, value."""
    card = types.SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132,
        total_memory=80 << 30, regs_per_multiprocessor=65536, warp_size=32,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472, L2_cache_size=50 << 20, gcnArchName="",
    )  # fmt: skip
    hints = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    )  # fmt: skip
    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    state = torch.zeros(16, dtype=torch.uint8)
    yield from (
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "get_device_properties", lambda *_: card),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_rng_state", lambda *_: state),
        (torch.cuda, "set_rng_state", lambda *_: None),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "_exchange_device", lambda _: 0),
        (torch.cuda, "_maybe_exchange_device", lambda _: 0),
        (torch.version, "cuda", "12.8"),
        (fake_tensor, "init_gpu_context", lambda *_: None),
        (torch.utils._triton, "triton_hash_with_backend", lambda: "0" * 16),
        (triton.runtime.driver, "_active", driver),
        (DeviceProperties, "create", lambda _: hints),
        (CudaInterface, "get_device_properties", lambda *_: card),
        (CudaInterface.Worker, "get_device_properties", lambda *_: card),
        (pad_mm, "should_pad", lambda *_, **__: False),  # it would time products on the card
        (joint_graph, "lazy_init", lambda *_: None),  # no patterns, which are traced on the card
        (post_grad, "lazy_init", lambda *_: None),
        (joint_graph, "UniformValueConstantFolder", _FolderOnCpu),
    )
