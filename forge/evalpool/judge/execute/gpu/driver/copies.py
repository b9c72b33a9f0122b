"""Fills and copies of a card's memory.

The methods are those of `Driver`.
"""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_uint, c_ulonglong, c_void_p

from forge.evalpool.judge.execute.gpu.driver.context import ContextCalls

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
