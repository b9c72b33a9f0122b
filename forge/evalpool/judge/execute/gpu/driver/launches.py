"""Launches: their geometry, the driver's structure for it, and the call.

The methods are those of `Driver`; `run.py` makes a structure once and launches it many times.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any, Final

from forge.evalpool.judge.execute.gpu.driver.calls import Calls
from forge.evalpool.judge.execute.gpu.driver.structures import LaunchAttribute, LaunchConfig

CLUSTER, COOPERATIVE, CLUSTER_POLICY, PROGRAMMATIC = 4, 2, 5, 6
"""Launch attributes."""
SPREAD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything about a launch but its arguments."""

    grid: tuple[int, int, int]
    num_threads: int
    shared_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    is_cooperative: bool = False
    is_programmatic: bool = False
    """True if it may start before the launch before it has ended."""


class LaunchCalls(Calls):
    """The call that launches a kernel."""

    def launch(self, function: int, config: LaunchConfig, arguments: Any) -> None:
        """Launches asynchronously. `arguments` is an array of pointers, one per parameter."""
        self.call("launch", byref(config), c_void_p(function), arguments, None)


def launch_config(geometry: Geometry, *, stream: int) -> LaunchConfig:
    """The driver's structure for a launch; `attributes` lives as long as the result."""
    attributes: list[tuple[int, tuple[int, ...]]] = []
    if geometry.is_programmatic:
        attributes.append((PROGRAMMATIC, (1,)))
    if geometry.is_cooperative:
        attributes.append((COOPERATIVE, (1,)))
    if geometry.cluster != (1, 1, 1):
        attributes += [(CLUSTER, geometry.cluster), (CLUSTER_POLICY, (SPREAD,))]
    array = (LaunchAttribute * max(len(attributes), 1))()
    for target, (number, values) in zip(array, attributes, strict=False):
        target.number = number
        for place, value in enumerate(values):
            target.value[place] = value
    config = LaunchConfig(
        grid=(c_uint * 3)(*geometry.grid),
        block=(c_uint * 3)(geometry.num_threads, 1, 1),
        shared_bytes=geometry.shared_bytes,
        stream=stream,
        num_attributes=len(attributes),
    )
    config.attributes = ctypes.cast(array, ctypes.POINTER(LaunchAttribute))
    config.kept = array
    return config
