# pyright: strict
"""Why a reference cannot be used, and which ones failed lately."""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FAILED_S = 120.0
"""Time for which a failure of a reference stands for the next candidates."""
MAX_FAILURES = 256


class ReferenceFailed(Exception):
    """The problem's own reference cannot be run. Infra: no candidate is to blame."""


class ProblemTooLarge(ReferenceFailed):
    """The problem's tensors are more than this judge has memory for."""


class KnownFailures:
    """References that failed twice in a row lately. Each candidate of such a problem would wait for
    the same failure, up to a judge's deadline. Not for ever: a machine may have been full."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: OrderedDict[str, list[tuple[float, ReferenceFailed]]] = OrderedDict()
        """Failures since the last success, by problem."""

    def require_unknown(self, key: str) -> None:
        """Raises the failure of a problem that failed twice, for FAILED_S."""
        found = self._found.get(key, [])
        if len(found) > 1 and self._clock() - found[-1][0] < FAILED_S:
            error = found[-1][1]
            raise type(error)(*error.args)

    @contextmanager
    def noted(self, key: str) -> Generator[None]:
        """Within, a ReferenceFailed counts as a failure of this problem, and the end as a
        success."""
        before = self._found.pop(key, [])
        try:
            yield
        except ReferenceFailed as error:
            found = type(error)(*error.args)  # without the frames that the other one came through
            self._found[key] = [*before[-1:], (self._clock(), found)]
            while len(self._found) > MAX_FAILURES:
                self._found.popitem(last=False)
            raise
