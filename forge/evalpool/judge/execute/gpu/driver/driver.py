"""One driver with all of its calls. Made by `card.py`; the executor's process has one."""

from __future__ import annotations

from forge.evalpool.judge.execute.gpu.driver.copies import CopyCalls
from forge.evalpool.judge.execute.gpu.driver.launches import LaunchCalls
from forge.evalpool.judge.execute.gpu.driver.maps import MapCalls
from forge.evalpool.judge.execute.gpu.driver.modules import ModuleCalls
from forge.evalpool.judge.execute.gpu.driver.ranges import RangeCalls


class Driver(ModuleCalls, LaunchCalls, MapCalls, RangeCalls, CopyCalls):
    """One driver library. Calls act in the calling thread's current context."""
