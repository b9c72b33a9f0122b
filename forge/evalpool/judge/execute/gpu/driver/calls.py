"""Names and errors of the driver's calls, the library that has them, and their structures.

Structures are the same for CUDA and HIP.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import TYPE_CHECKING, Any, Final

from forge.evalpool.judge.channel.gpu_library import MIN_ROCM, open_library

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES: Mapping[str, tuple[str, str]] = {
    "context_limit": ("cuCtxSetLimit", "hipDeviceSetLimit"),
    "context_synchronize": ("cuCtxSynchronize", "hipDeviceSynchronize"),
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
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    200: "INVALID_IMAGE",
    209: "NO_BINARY_FOR_GPU",
    218: "INVALID_PTX",
    700: "ILLEGAL_ADDRESS",
    701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT",
    719: "LAUNCH_FAILED",
}
"""Used where the driver has no call for it; CUDA's and HIP's numbers agree here."""


class DriverError(Exception):
    """The driver refused a call, or reports that an earlier launch went wrong."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name

    @property
    def is_fault(self) -> bool:
        """True if the context is lost."""
        return self.code in FAULTS


class Unsupported(Exception):
    """This driver or card lacks a call that the executor needs."""


class Calls:
    """One driver library. Calls act in the calling thread's current context."""

    def __init__(self, kind: str, library: Any = None) -> None:
        """Raises Unsupported if the library is missing. `library` stands in for it in tests."""
        self._column = {"cuda": 0, "hip": 1}[kind]
        self.kind = kind
        try:
            self._library = open_library(kind) if library is None else library
        except OSError as error:
            raise Unsupported(str(error)) from error

    def has(self, call: str) -> bool:
        """True if this driver has the call."""
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
            raise DriverError(symbol, code, self.error_name(code))

    def error_name(self, code: int) -> str:
        """The driver's name of an error code, without its prefix."""
        text = c_char_p()
        if self.has("error_name"):
            getattr(self._library, NAMES["error_name"][self._column])(c_int(code), byref(text))
        name = (text.value or b"").decode(errors="replace").removeprefix("CUDA_ERROR_")
        return name or ERROR_NAMES.get(code, "UNKNOWN")


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
