"""Answers Inductor's questions about a card as an H100 would, where there is none.

Inductor generates code before it compiles it, so that fake CUDA tensors are enough.
"""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.utils._triton
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

if TYPE_CHECKING:
    from collections.abc import Iterator


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
