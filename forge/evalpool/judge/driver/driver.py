"""The driver's library and its calls: contexts, virtual memory, copies, modules, tensor maps.

A call that a driver lacks (`NAMES` has no symbol of it) raises Unsupported.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Mapping
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any, Final

LIBRARIES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}
MAPS = "/proc/self/maps"
MIN_ROCM: Final = (6, 2)
"""Oldest ROCm that Triton's launcher and the executor's calls are known in."""
NAMES: Mapping[str, tuple[str, str]] = {
    "context_limit": ("cuCtxSetLimit", "hipDeviceSetLimit"),
    "device_attribute": ("cuDeviceGetAttribute", "hipDeviceGetAttribute"),
    "error_name": ("cuGetErrorName", ""),
    "function_cache": ("cuFuncSetCacheConfig", ""),
    "function_set": ("cuFuncSetAttribute", ""),
    "function_parameter": ("cuFuncGetParamInfo", ""),
    "launch": ("cuLaunchKernelEx", ""),
    "launch_plain": ("", "hipModuleLaunchKernel"),
    "memory_access": ("cuMemSetAccess", "hipMemSetAccess"),
    "memory_copy": ("cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync"),
    "memory_create": ("cuMemCreate", "hipMemCreate"),
    "memory_export": ("cuMemExportToShareableHandle", "hipMemExportToShareableHandle"),
    "memory_fill": ("cuMemsetD8Async", "hipMemsetD8Async"),
    "memory_fill_wide": ("cuMemsetD32Async", "hipMemsetD32Async"),
    "memory_free": ("cuMemAddressFree", "hipMemAddressFree"),
    "memory_granularity": ("cuMemGetAllocationGranularity", "hipMemGetAllocationGranularity"),
    "memory_import": ("cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle"),
    "memory_map": ("cuMemMap", "hipMemMap"),
    "memory_release": ("cuMemRelease", "hipMemRelease"),
    "memory_reserve": ("cuMemAddressReserve", "hipMemAddressReserve"),
    "memory_unmap": ("cuMemUnmap", "hipMemUnmap"),
    "memory_upload": ("cuMemcpyHtoD_v2", "hipMemcpyHtoD"),
    "module_function": ("cuModuleGetFunction", "hipModuleGetFunction"),
    "module_load": ("cuModuleLoadData", "hipModuleLoadData"),
    "module_unload": ("cuModuleUnload", "hipModuleUnload"),
    "persisting_reset": ("cuCtxResetPersistingL2Cache", ""),
    "stream_synchronize": ("cuStreamSynchronize", "hipStreamSynchronize"),
    "tensor_map": ("cuTensorMapEncodeTiled", ""),
}
"""Symbol of each call in CUDA's library and in HIP's; empty where a driver has none."""
NOT_ALWAYS: Mapping[str, frozenset[str]] = {
    "cuda": frozenset({"error_name", "function_parameter", "persisting_reset"}),
    "hip": frozenset(),
}
"""Calls that a driver may lack: all that is lost are better messages and checks."""
OUT_OF_MEMORY: Final = 2
FAULTS: Final = frozenset({214, 700, 702, 709, 710, *range(714, 720), 999})
"""Codes after which the context is lost: illegal addresses and instructions, traps, timeouts."""
ERROR_NAMES: Mapping[int, str] = {
    1: "INVALID_VALUE", 2: "OUT_OF_MEMORY", 200: "INVALID_IMAGE", 209: "NO_BINARY_FOR_GPU",
    218: "INVALID_PTX", 700: "ILLEGAL_ADDRESS", 701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT", 719: "LAUNCH_FAILED",
}  # fmt: skip
"""Used where the driver has no call for it; CUDA's and HIP's numbers agree here."""
SUPPORTS_VIRTUAL_MEMORY: Final = 102
"""Device attribute."""
PRINTF_FIFO, MALLOC_HEAP = 1, 2
"""Limits of a context. A kernel has no print and no malloc (rule 3), so both are made small."""
USUAL_ADDRESSES = range(0x7C00_0000_0000, 0x7E00_0000_0000)
"""Addresses below those of a process's libraries and stacks, where a driver maps memory."""
ADDRESS_STEP, NUM_PLACES_TRIED = 32 << 20, 4
PINNED, ON_DEVICE, POSIX_FD, READ_WRITE, MINIMUM_GRANULARITY = 1, 1, 1, 3, 0
DEFAULT_STREAM = 0
"""The stream of calls that name none."""
MAX_DYNAMIC_SHARED: Final = 8
PREFER_SHARED: Final = 1
DEFAULT_SHARED_BYTES: Final = 48 << 10
TENSOR_MAP_BYTES: Final = 128
TENSOR_MAP_ALIGNMENT: Final = 64


class DriverError(Exception):
    """The driver refused a call, reports that an earlier launch went wrong, or has no room."""

    def __init__(self, message: str, code: int = OUT_OF_MEMORY) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_fault(self) -> bool:
        """True if the context is lost."""
        return self.code in FAULTS


class Unsupported(Exception):
    """This driver or card lacks a call that the executor needs."""


class Location(ctypes.Structure):
    """A device by its index."""

    _fields_ = [("kind", c_int), ("index", c_int)]


class MemoryProperties(ctypes.Structure):
    """Kind of physical memory that is created."""

    _fields_ = [
        ("kind", c_int),
        ("handle_kinds", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    """Rights of a device to a mapped range."""

    _fields_ = [("location", Location), ("flags", c_int)]


class LaunchConfig(ctypes.Structure):
    """Geometry and stream of a launch, and its attributes: a null pointer where there are none."""

    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("num_attributes", c_uint),
    ]


class TensorMap(ctypes.Structure):
    """An encoded tensor map; lies at a multiple of `TENSOR_MAP_ALIGNMENT` (see `aligned_map`)."""

    _fields_ = [("words", c_ulonglong * 16)]


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


def aligned_map() -> tuple[TensorMap, Any]:
    """A tensor map at an address that the driver accepts, and the buffer that holds it."""
    buffer = ctypes.create_string_buffer(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT)
    offset = -ctypes.addressof(buffer) % TENSOR_MAP_ALIGNMENT
    return TensorMap.from_buffer(buffer, offset), buffer


def open_library(kind: str) -> ctypes.CDLL:
    """The driver's library; of HIP the one that this process has loaded already, where torch brings
    its own beside the system's: a second one would know nothing of torch's memory. Raises OSError.
    """
    name, path = LIBRARIES[kind], ""
    if kind == "hip":
        with suppress(OSError), open(MAPS) as maps:
            lines = (line.split(maxsplit=5) for line in maps if f"/{name}" in line)
            path = next((line[-1].strip() for line in lines), "")
    return ctypes.CDLL(path or name)


class Driver:
    """One driver library. Calls act in the calling thread's current context; each raises
    DriverError, or Unsupported where the driver lacks it."""

    def __init__(self, kind: str, library: Any = None) -> None:
        """Raises Unsupported if the library is missing. `library` stands in for it in tests."""
        self._column = {"cuda": 0, "hip": 1}[kind]
        self.kind = kind
        try:
            self._library = open_library(kind) if library is None else library
        except OSError as error:
            raise Unsupported(str(error)) from error

    def has(self, call: str) -> bool:
        symbol = NAMES[call][self._column]
        return bool(symbol) and hasattr(self._library, symbol)

    def require_calls(self) -> None:
        """Raises Unsupported if the driver lacks a call that every program needs."""
        named = (call for call, symbols in NAMES.items() if symbols[self._column])
        lost = [one for one in named if one not in NOT_ALWAYS[self.kind] and not self.has(one)]
        if lost:
            symbols = ", ".join(NAMES[call][self._column] for call in lost)
            needed = "; ROCm {}.{} or later has them".format(*MIN_ROCM) * (self.kind == "hip")
            raise Unsupported(f"the {self.kind} driver has no {symbols}{needed}")

    def call(self, call: str, *arguments: Any) -> None:
        """Raises DriverError, or Unsupported where the driver lacks the call."""
        symbol = NAMES[call][self._column]
        if not self.has(call):
            raise Unsupported(f"the {self.kind} driver has no {symbol or call}")
        code: int = getattr(self._library, symbol)(*arguments)
        if code:
            raise DriverError(f"{symbol}: {self.error_name(code)} ({code})", code)

    def error_name(self, code: int) -> str:
        """The driver's name of an error code, without its prefix."""
        text = c_char_p()
        if self.has("error_name"):
            getattr(self._library, NAMES["error_name"][self._column])(c_int(code), byref(text))
        name = (text.value or b"").decode(errors="replace").removeprefix("CUDA_ERROR_")
        return name or ERROR_NAMES.get(code, "UNKNOWN")

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

    def granularity(self, device: int, *, is_shared: bool = False) -> int:
        properties, size = _properties(device, is_shared=is_shared), c_size_t()
        self.call("memory_granularity", byref(size), byref(properties), c_int(MINIMUM_GRANULARITY))
        return size.value

    def create_memory(self, num_bytes: int, *, device: int, is_shared: bool = False) -> int:
        """Handle of physical memory, not mapped; one that can be exported if `is_shared`."""
        properties, handle = _properties(device, is_shared=is_shared), c_ulonglong()
        sizes = (c_size_t(num_bytes), byref(properties), c_ulonglong(0))
        self.call("memory_create", byref(handle), *sizes)
        return handle.value

    def export_memory(self, handle: int) -> int:
        fd = c_int(-1)
        to = (c_int(POSIX_FD), c_ulonglong(0))
        self.call("memory_export", byref(fd), c_ulonglong(handle), *to)
        return fd.value

    def import_memory(self, fd: int) -> int:
        handle = c_ulonglong()
        self.call("memory_import", byref(handle), c_void_p(fd), c_int(POSIX_FD))
        return handle.value

    def release_memory(self, handle: int) -> None:
        """Releases a handle of memory; what is mapped stays until it is unmapped."""
        self.call("memory_release", c_ulonglong(handle))

    def reserve(self, num_bytes: int, *, at: int = 0) -> int:
        """Address of a range that nothing is mapped to: `at`, if the driver can give it."""
        address = c_ulonglong()
        terms = (c_size_t(num_bytes), c_size_t(0), c_ulonglong(at), c_ulonglong(0))
        self.call("memory_reserve", byref(address), *terms)
        return address.value

    def reserve_usual(self, num_bytes: int) -> int:
        """The same, at a random address among those where a process usually has memory of the card:
        the driver's own choice for reserved ranges is much lower, by which a kernel could know
        them."""
        for _ in range(NUM_PLACES_TRIED):
            at = USUAL_ADDRESSES.start + secrets.randbelow(len(USUAL_ADDRESSES))
            with suppress(DriverError):
                found = self.reserve(num_bytes, at=at // ADDRESS_STEP * ADDRESS_STEP)
                if found in USUAL_ADDRESSES:
                    return found
                self.free_range(found, num_bytes)
        return self.reserve(num_bytes)

    def free_range(self, address: int, num_bytes: int) -> None:
        self.call("memory_free", c_ulonglong(address), c_size_t(num_bytes))

    def map(self, address: int, num_bytes: int, handle: int, *, device: int) -> None:
        """Maps all of a handle's memory, for reading and writing."""
        place = (c_ulonglong(address), c_size_t(num_bytes))
        self.call("memory_map", *place, c_size_t(0), c_ulonglong(handle), c_ulonglong(0))
        access = Access(location=Location(kind=ON_DEVICE, index=device), flags=READ_WRITE)
        try:
            self.call("memory_access", *place, byref(access), c_size_t(1))
        except DriverError:
            self.unmap(address, num_bytes)
            raise

    def unmap(self, address: int, num_bytes: int) -> None:
        """Does not wait for work that uses the range: synchronize before."""
        self.call("memory_unmap", c_ulonglong(address), c_size_t(num_bytes))

    def fill(self, address: int, num_bytes: int, value: int, *, stream: int) -> None:
        """Fills a range with a byte, asynchronously."""
        call, unit, size = "memory_fill_wide", c_uint(value * 0x0101_0101), num_bytes // 4
        if address % 4 or num_bytes % 4:
            call, unit, size = "memory_fill", ctypes.c_ubyte(value), num_bytes
        if size:
            self.call(call, c_ulonglong(address), unit, c_size_t(size), c_void_p(stream))

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

    def load_module(self, image: bytes) -> int:
        """Handle of a module that was made of a cubin or hsaco."""
        module = c_void_p()
        self.call("module_load", byref(module), image)
        return module.value or 0

    def unload_module(self, module: int) -> None:
        self.call("module_unload", c_void_p(module))

    def function(self, module: int, name: str) -> int:
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

    def launch(self, function: int, config: LaunchConfig, arguments: Any) -> None:
        """Launches asynchronously. `arguments` is an array of pointers, one per parameter."""
        if self.kind == "cuda":
            self.call("launch", byref(config), c_void_p(function), arguments, None)
            return
        place = (*map(c_uint, (*config.grid, *config.block, config.shared_bytes)),)
        call = (c_void_p(function), *place, c_void_p(config.stream))
        self.call("launch_plain", *call, arguments, None)

    def encode_map(self, spec: MapSpec, *, address: int, target: TensorMap) -> None:
        """Writes a tensor map for a tensor at `address`."""
        rank = len(spec.shape)
        longs, ints = c_ulonglong * rank, c_uint * rank
        sizes = (longs(*spec.shape), longs(*spec.stride_bytes), ints(*spec.box), ints(*[1] * rank))
        form = (c_int(0), c_int(spec.swizzle), c_int(2), c_int(spec.is_nan_filled))
        what = (byref(target), c_int(spec.data_type), c_uint(rank), c_void_p(address))
        self.call("tensor_map", *what, *sizes, *form)


def _properties(device: int, *, is_shared: bool) -> MemoryProperties:
    location = Location(kind=ON_DEVICE, index=device)
    return MemoryProperties(
        kind=PINNED, handle_kinds=POSIX_FD if is_shared else 0, location=location
    )
