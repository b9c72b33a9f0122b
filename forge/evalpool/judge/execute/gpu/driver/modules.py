"""Calls for modules and their kernels: loading, sizes, permissions.

The methods are those of `Driver`.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Final

from forge.evalpool.judge.execute.gpu.driver.calls import Calls, DriverError

MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14
PREFER_SHARED: Final = 1
DEFAULT_SHARED_BYTES: Final = 48 << 10
MAX_PORTABLE_CLUSTER: Final = 8


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
        if num_bytes > DEFAULT_SHARED_BYTES:
            self.call("function_cache", c_void_p(function), c_int(PREFER_SHARED))
            self._set(function, MAX_DYNAMIC_SHARED, num_bytes)

    def allow_cluster(self, function: int, num_blocks: int) -> None:
        """Allows a cluster larger than what every card of the architecture has."""
        if num_blocks > MAX_PORTABLE_CLUSTER:
            self._set(function, NON_PORTABLE_CLUSTER, 1)

    def _set(self, function: int, attribute: int, value: int) -> None:
        self.call("function_set", c_void_p(function), c_int(attribute), c_int(value))
