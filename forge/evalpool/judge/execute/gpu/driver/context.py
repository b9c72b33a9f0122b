"""Calls for a context and its streams: what it supports, its buffers, waits.

The methods are those of `Driver`.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Final

from forge.evalpool.judge.execute.gpu.driver.calls import Calls, Unsupported

SUPPORTS_VIRTUAL_MEMORY: Final = 102
"""Device attribute."""
PRINTF_FIFO, MALLOC_HEAP = 1, 2
"""Limits of a context. A kernel has no print and no malloc (rule 3), so both are made small."""


class ContextCalls(Calls):
    """Calls for the current context."""

    def require_virtual_memory(self, device: int) -> None:
        """Raises Unsupported where buffers cannot be mapped between guards."""
        value = c_int()
        if self.kind == "cuda":
            self.call("device_attribute", byref(value), SUPPORTS_VIRTUAL_MEMORY, c_int(device))
        needed = ("memory_create", "memory_reserve", "memory_map", "memory_access")
        missing = [call for call in needed if not self.has(call)]
        if missing or (self.kind == "cuda" and not value.value):
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
