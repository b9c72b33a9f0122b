"""The trainer's side of control.sock: takes batches, says what was trained, published, saved.

`publish` may be called from a thread of its own; everything else belongs to the main thread.
Requests are blocking, each with a deadline; the supervisor answers `take` with `wait` well before
it, so a silent supervisor is noticed. When the supervisor is gone, the lease ends this process;
nothing here has to.
"""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from forge.errors import ChildDied, MachineError, Stalled
from forge.process.ask import error_message, send_blocking

logger = logging.getLogger(__name__)

# The supervisor answers a long poll within 30 s; three times that is silence.
TAKE_TIMEOUT_S = 90.0
# /trained waits for the store, whose writer may be silent for 60 s before it is called stalled.
ANSWER_TIMEOUT_S = 90.0


class StopAsked(Exception):
    """SIGTERM arrived while nothing was in progress."""


class StopFlag:
    """Remembers SIGTERM. While `take` waits there is no step to finish, so it ends the wait
    instead."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_waiting = False

    def install(self) -> None:
        """Become the handler of SIGTERM. Main thread only."""
        assert threading.current_thread() is threading.main_thread()
        signal.signal(signal.SIGTERM, self._on_signal)

    def __enter__(self) -> None:
        self._is_waiting = True
        if self.is_set:
            raise StopAsked

    def __exit__(self, *exc_info: object) -> None:
        self._is_waiting = False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.is_set = True
        if self._is_waiting:
            self._is_waiting = False
            raise StopAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBatch:
    """What `take` gave: a step to train."""

    step: int
    samples_path: Path
    wait_s: float
    """Since take was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrders:
    """What the supervisor wants at the end of a step, beside what the settings say."""

    save: bool = False
    """A checkpoint."""
    evaluate: bool = False
    """The weights published, and no next step begun until they are: they will be evaluated."""

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> StepOrders:
        """From its answer to a report."""
        return cls(save=bool(answer.get("save")), evaluate=bool(answer.get("evaluate")))


class SupervisorClient:
    """A blocking client of control.sock."""

    def __init__(self, socket_path: Path, *, stop: StopFlag, publish_timeout_s: float) -> None:
        """`publish_timeout_s`: until every replica has loaded new weights and passed its probe."""
        self._socket_path = socket_path
        self.before_poll: Callable[[], None] = lambda: None
        """Called by `take` before each long poll; what it raises ends the wait."""
        self._stop = stop
        self._publish_timeout_s = publish_timeout_s

    def take(self, *, step: int) -> TakenBatch | None:
        """The batch after `step`; None when there is none to come or SIGTERM asked us to stop."""
        start = time.monotonic()
        try:
            with self._stop:
                while True:
                    self.before_poll()
                    answer = self._post("/take", {"step": step}, timeout_s=TAKE_TIMEOUT_S)
                    if answer["kind"] != "wait":
                        break
        except StopAsked:
            return None
        if answer["kind"] != "batch":
            logger.info("take: %s", answer["kind"])
            return None
        return TakenBatch(
            step=answer["step"],
            samples_path=Path(answer["samples_path"]),
            wait_s=time.monotonic() - start,
        )

    def publish(self, *, step: int, path: Path, probe: Mapping[str, Any] | None) -> int:
        """Offer new weights; returns the policy version that all replicas now have."""
        body = {"step": step, "path": str(path), "probe": probe}
        return self._post("/publish", body, timeout_s=self._publish_timeout_s)["version"]

    def trained(self, *, step: int, metrics: Mapping[str, float]) -> StepOrders:
        """Acknowledge a batch."""
        return StepOrders.read(self._post("/trained", {"step": step, "metrics": _finite(metrics)}))

    def checkpoint(self, *, step: int, path: Path) -> None:
        """Say that a whole checkpoint stands at `path`."""
        self._post("/checkpoint", {"step": step, "path": str(path)})

    def failed(self, **numbers: Any) -> None:
        """Say why this trainer is about to end. Best effort: it ends anyway."""
        try:
            self._post("/failed", numbers, timeout_s=5.0)
        except (Stalled, ChildDied, MachineError) as err:
            logger.warning("the reason was not taken: %s", err)

    def progress(self, *, step: int, total: int, metrics: Mapping[str, float]) -> StepOrders:
        """Say how far we are. Best effort: a busy supervisor costs a line in the log, not the
        training."""
        try:
            body = {"step": step, "total": total, "metrics": _finite(metrics)}
            return StepOrders.read(self._post("/progress", body, timeout_s=5.0))
        except (Stalled, ChildDied, MachineError) as err:
            logger.warning("progress of step %d was not taken: %s", step, err)
            return StepOrders()

    def _post(self, path: str, body: dict, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict:
        answer = send_blocking(
            self._socket_path, "POST", path, body, server="control.sock", timeout_s=timeout_s
        )
        if answer.status != 200:
            message = error_message(answer.content)
            raise MachineError(f"control.sock answered {answer.status} to {path}: {message}")
        return json.loads(answer.content)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """JSON has no NaN; what is not a number is left out."""
    return {k: float(v) for k, v in metrics.items() if math.isfinite(v)}
