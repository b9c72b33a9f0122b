"""The clocks of the host, ahead of the machine's: a call may be decades later than another."""

from __future__ import annotations

import datetime
import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NUMBERS = (
    *("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime"),
    *("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns"),
    "clock_gettime_ns",
)
"""Functions of `time` that return one."""
PARTS = ("gmtime", "localtime", "ctime")
"""Functions that take the time, or read it."""


class Clock:
    """The host's clocks, ahead of the machine's."""

    def __init__(self) -> None:
        self.ahead_s = self.latest_s = 0

    def patches(self) -> Iterator[tuple[Any, str, Any]]:
        """Owner, name and stand-in of each function that reads a clock."""
        for name in NUMBERS:
            unit = 10**9 if name.endswith("_ns") else 1
            yield time, name, partial(self._number, getattr(time, name), unit)
        for name in PARTS:
            yield time, name, partial(self._parts, getattr(time, name), time.time)
        clock, real = self, datetime.datetime

        class Moment(real):
            """A moment of this clock."""

            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Any:
                return real.now(tz) + datetime.timedelta(seconds=clock.ahead_s)

            @classmethod
            def utcnow(cls) -> Any:
                return cls.now(datetime.UTC).replace(tzinfo=None)

            @classmethod
            def today(cls) -> Any:
                return cls.now()

        class Day(datetime.date):
            """A day of this clock."""

            @classmethod
            def today(cls) -> Any:
                return Moment.now().date()

        yield datetime, "datetime", Moment
        yield datetime, "date", Day

    def _number(self, read: Callable[..., Any], unit: int, *given: Any) -> Any:
        return read(*given) + self.ahead_s * unit

    def _parts(
        self, made: Callable[[float], Any], read: Callable[[], float], at: float | None = None
    ) -> Any:
        return made(read() + self.ahead_s if at is None else at)
