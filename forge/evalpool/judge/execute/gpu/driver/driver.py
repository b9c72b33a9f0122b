"""The driver with all of its calls: context and streams, copies, modules, launches, tensor maps.

Made by `card.py`; the process of the executor has one. `ranges` has the calls for virtual memory.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from forge.evalpool.judge.execute.gpu.driver.calls import (
    Calls,
    DriverError,
    LaunchConfig,
    TensorMap,
    Unsupported,
)
from forge.evalpool.judge.execute.gpu.driver.ranges import RangeCalls

SUPPORTS_VIRTUAL_MEMORY: Final = 102
"""Device attribute."""
PRINTF_FIFO, MALLOC_HEAP = 1, 2
"""Limits of a context. A kernel has no print and no malloc (rule 3), so both are made small."""


class ContextCalls(Calls):
    """Calls for the current context."""

    def require_virtual_memory(self, device: int) -> None:
        """Raises Unsupported where buffers cannot be mapped between guards."""
        self.require_calls()
        if self.kind != "cuda":
            return
        value = c_int()
        self.call("device_attribute", byref(value), SUPPORTS_VIRTUAL_MEMORY, c_int(device))
        if not value.value:
            raise Unsupported("the driver has no virtual memory calls: programs cannot be run")

    def shrink_buffers(self) -> None:
        """Makes the buffers of device prints and of device malloc as small as the driver allows."""
        for limit in (PRINTF_FIFO, MALLOC_HEAP):
            if self.kind == "cuda":
                self.call("context_limit", c_int(limit), c_size_t(0))

    def reset_persisting(self) -> None:
        """Ends the persistence of cached lines, where the driver has such."""
        if self.has("persisting_reset"):
            self.call("persisting_reset")

    def synchronize(self, stream: int) -> None:
        """Waits for a stream. Raises DriverError for a fault of a launch in it."""
        self.call("stream_synchronize", c_void_p(stream))


DEFAULT_STREAM = 0
"""The stream of calls that name none."""


class CopyCalls(ContextCalls):
    """Calls that fill and copy memory."""

    def fill(self, address: int, num_bytes: int, value: int, *, stream: int) -> None:
        """Fills a range with a byte, asynchronously."""
        if not num_bytes:
            return
        if address % 4 or num_bytes % 4:
            self.call(
                "memory_fill",
                c_ulonglong(address),
                ctypes.c_ubyte(value),
                c_size_t(num_bytes),
                c_void_p(stream),
            )
            return
        word = c_uint(value * 0x0101_0101)
        count = c_size_t(num_bytes // 4)
        self.call("memory_fill_wide", c_ulonglong(address), word, count, c_void_p(stream))

    def copy(self, target: int, source: int, num_bytes: int, *, stream: int) -> None:
        """Copies on the card, asynchronously."""
        if num_bytes:
            addresses = (c_ulonglong(target), c_ulonglong(source))
            self.call("memory_copy", *addresses, c_size_t(num_bytes), c_void_p(stream))

    def upload(self, address: int, data: bytes) -> None:
        """Copies from the host and waits: the driver returns from a copy of pageable memory before
        it has reached the card."""
        if data:
            self.call("memory_upload", c_ulonglong(address), data, c_size_t(len(data)))
            self.synchronize(DEFAULT_STREAM)


MAX_DYNAMIC_SHARED: Final = 8
PREFER_SHARED: Final = 1
DEFAULT_SHARED_BYTES: Final = 48 << 10


class ModuleCalls(Calls):
    """Calls for modules and their kernels."""

    def load_module(self, image: bytes) -> int:
        """Handle of a module that was made of a cubin or hsaco."""
        module = c_void_p()
        self.call("module_load", byref(module), image)
        return module.value or 0

    def unload_module(self, module: int) -> None:
        """Unloads a module and its kernels."""
        self.call("module_unload", c_void_p(module))

    def function(self, module: int, name: str) -> int:
        """Handle of a kernel in a module."""
        function = c_void_p()
        self.call("module_function", byref(function), c_void_p(module), name.encode())
        return function.value or 0

    def parameter_sizes(self, function: int) -> tuple[int, ...] | None:
        """Bytes of each parameter of a kernel; None where the driver cannot say."""
        if not self.has("function_parameter"):
            return None
        sizes: list[int] = []
        offset, size = c_size_t(), c_size_t()
        while True:
            at = (c_void_p(function), c_size_t(len(sizes)), byref(offset), byref(size))
            try:
                self.call("function_parameter", *at)
            except DriverError:
                return tuple(sizes)
            sizes.append(size.value)

    def allow_shared(self, function: int, num_bytes: int) -> None:
        """Lets a kernel use so much dynamic shared memory, as Triton's own loader does."""
        if self.kind == "cuda" and num_bytes > DEFAULT_SHARED_BYTES:  # HIP needs no permission
            self.call("function_cache", c_void_p(function), c_int(PREFER_SHARED))
            size = (c_int(MAX_DYNAMIC_SHARED), c_int(num_bytes))
            self.call("function_set", c_void_p(function), *size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything about a launch but its arguments."""

    grid: tuple[int, int, int]
    num_threads: int
    shared_bytes: int


class LaunchCalls(Calls):
    """The calls that launch a kernel."""

    def launch(self, function: int, config: LaunchConfig, arguments: Any) -> None:
        """Launches asynchronously. `arguments` is an array of pointers, one per parameter."""
        if self.kind == "cuda":
            self.call("launch", byref(config), c_void_p(function), arguments, None)
            return
        place = (*map(c_uint, (*config.grid, *config.block, config.shared_bytes)),)
        call = (c_void_p(function), *place, c_void_p(config.stream))
        self.call("launch_plain", *call, arguments, None)


def launch_config(geometry: Geometry, *, stream: int) -> LaunchConfig:
    """The driver's structure for a launch without attributes."""
    return LaunchConfig(
        grid=(c_uint * 3)(*geometry.grid),
        block=(c_uint * 3)(geometry.num_threads, 1, 1),
        shared_bytes=geometry.shared_bytes,
        stream=stream,
    )


TENSOR_MAP_BYTES: Final = 128
TENSOR_MAP_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSpec:
    """Parameters of `cuTensorMapEncodeTiled`, innermost dimension first."""

    data_type: int
    shape: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    """Strides of all dimensions but the innermost."""
    box: tuple[int, ...]
    swizzle: int
    is_nan_filled: bool = False


class MapCalls(Calls):
    """The call that encodes a tensor map."""

    def encode_map(self, spec: MapSpec, *, address: int, target: TensorMap) -> None:
        """Writes a tensor map for a tensor at `address`."""
        rank = len(spec.shape)
        self.call(
            "tensor_map",
            byref(target),
            c_int(spec.data_type),
            c_uint(rank),
            c_void_p(address),
            (c_ulonglong * rank)(*spec.shape),
            (c_ulonglong * rank)(*spec.stride_bytes),
            (c_uint * rank)(*spec.box),
            (c_uint * rank)(*[1] * rank),
            c_int(0),
            c_int(spec.swizzle),
            c_int(2),
            c_int(1 if spec.is_nan_filled else 0),
        )


def aligned_map() -> tuple[TensorMap, Any]:
    """A tensor map at an address that the driver accepts, and the buffer that holds it."""
    buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
    offset = -ctypes.addressof(buffer) % TENSOR_MAP_ALIGNMENT
    return TensorMap.from_buffer(buffer, offset), buffer


class Driver(ModuleCalls, LaunchCalls, MapCalls, RangeCalls, CopyCalls):
    """One driver library. Calls act in the calling thread's current context."""
