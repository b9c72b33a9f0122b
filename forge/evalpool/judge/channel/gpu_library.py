"""Names of the GPU drivers' libraries, and opening the one of this process.

Used where the driver is called by ctypes. Imports neither torch nor anything of forge.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

LIBRARIES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}
MAPS = "/proc/self/maps"
MIN_ROCM: Final = (6, 2)
"""Oldest ROCm that Triton's launcher and the executor's calls are known in."""


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
