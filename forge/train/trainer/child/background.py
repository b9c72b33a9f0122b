"""Work of the trainer beside its steps: one call at a time, in a thread.

Its error is raised by the next call, and by `check`. Used for publishes and for checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Background:
    """Runs one call at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, call: Callable[[], object]) -> None:
        """Wait for the previous call, then run this one in a thread."""
        self.wait()

        def run() -> None:
            try:
                call()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        if not self.is_running:
            self.wait()

    def wait(self) -> float:
        """Wait for the running call and raise its error. Returns the seconds waited."""
        began = time.monotonic()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return time.monotonic() - began
