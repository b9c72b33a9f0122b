"""The trainer's client of control.sock: takes batches, reports steps, publishes and checkpoints.

`publish` and `checkpoint` may be called from threads; everything else belongs to the main thread.
Requests block, each with a deadline; the supervisor answers `take` with `wait` well before it, so a
silent supervisor is noticed. When the supervisor is gone, the lease ends this process.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from forge.errors import ChildDied, ConfigError, MachineError, Stalled
from forge.process.ask import Answer, error_message, send_blocking
from forge.train.checkpoints import require_whole
from forge.train.handle import FAILURE
from forge.train.trainer.child.parallel import join_process_group, reported_when_full
from forge.train.trainer.child.settings import TrainerSettings

logger = logging.getLogger(__name__)

TAKE_TIMEOUT_S = 90.0
"""Three times the supervisor's maximum for a long poll (30 s)."""
ANSWER_TIMEOUT_S = 90.0
"""/trained waits for the store, whose writer counts as stalled after 60 s of silence."""
BEST_EFFORT_S = 5.0
UNSERVED_S, UNSERVED_PAUSE_S = 10.0, 0.1
"""Maximum wait for a socket file that is absent, and the pause between two looks."""


class StopAsked(Exception):
    """SIGTERM arrived while no step was running."""


@contextmanager
def open_stage(settings: TrainerSettings) -> Iterator[tuple[SupervisorClient, StopFlag]]:
    """Around the training of a stage on this rank: SIGTERM is kept, the ranks are joined, and the
    supervisor learns of a refusal and of a full GPU. Raises MachineError if the checkpoint to
    continue is damaged."""
    stop = StopFlag()
    stop.install()
    rank, client = int(os.environ.get("RANK", "0")), SupervisorClient(settings, stop=stop)
    if settings.checkpoint is not None and rank == 0:
        require_whole(settings.checkpoint)
    budget = settings.micro_batch_tokens
    with client.refusals(), reported_when_full(client, rank=rank, micro_batch_tokens=budget):
        join_process_group()
        yield client, stop


class StopFlag:
    """Keeps SIGTERM until the end of the step. While `take` waits no step runs, so SIGTERM ends the
    wait (StopAsked)."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_waiting = False

    def install(self) -> None:
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
    """A batch from the supervisor, and the time since `take` was called."""

    step: int
    samples_path: Path
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrders:
    """Orders of the supervisor for the end of a step, in addition to the settings."""

    save: bool = False
    evaluate: bool = False
    """Publish the weights, and begin no step before that is done: they will be evaluated."""


class SupervisorClient:
    """A blocking client of control.sock. Raises Stalled, ChildDied or MachineError."""

    def __init__(self, settings: TrainerSettings, *, stop: StopFlag) -> None:
        self._socket_path = settings.control_socket
        self.before_poll: Callable[[], None] = lambda: None
        """Called by `take` before each long poll; an error from it ends the wait."""
        self._stop = stop
        self._publish_timeout_s = settings.publish_timeout_s
        self._failure = settings.work_dir / FAILURE if settings.is_elsewhere else None

    def take(self, *, step: int) -> TakenBatch | None:
        """The batch after `step`; None if there is none to come, or after SIGTERM."""
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
        """Offer new weights; returns their policy version when all replicas serve them."""
        body = {"step": step, "path": str(path), "probe": probe}
        return self._post("/publish", body, timeout_s=self._publish_timeout_s)["version"]

    def trained(self, *, step: int, metrics: Mapping[str, float]) -> StepOrders:
        return StepOrders(**self._post("/trained", {"step": step, "metrics": _finite(metrics)}))

    def checkpoint(self, *, step: int, path: Path) -> None:
        self._post("/checkpoint", {"step": step, "path": str(path)})

    def failed(self, **numbers: Any) -> None:
        """Report why this trainer is about to end, as far as that works. On a machine without the
        supervisor, the report is a file, which the process that started us passes on."""
        if self._failure is not None:
            self._failure.write_text(json.dumps(numbers))
            return
        self._best_effort("/failed", numbers)

    def _best_effort(self, path: str, reason: dict[str, Any]) -> None:
        try:
            self._post(path, reason, timeout_s=BEST_EFFORT_S)
        except (Stalled, ChildDied, MachineError) as err:
            logger.warning("the supervisor did not take the reason: %s", err)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            if self._failure is None:
                self._best_effort("/refused", {"message": str(error)})
            raise

    def progress(self, *, step: int, total: int, metrics: Mapping[str, float]) -> StepOrders:
        """Report progress. Best effort: a busy supervisor costs a line in the log, nothing else."""
        try:
            body = {"step": step, "total": total, "metrics": _finite(metrics)}
            return StepOrders(**self._post("/progress", body, timeout_s=BEST_EFFORT_S))
        except (Stalled, ChildDied, MachineError) as err:
            logger.warning("the supervisor did not take the progress of step %d: %s", step, err)
            return StepOrders()

    def _post(self, path: str, body: dict, *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict:
        answer = self._send(path, body, timeout_s=timeout_s)
        if answer.status != 200:
            message = error_message(answer.content)
            raise MachineError(f"control.sock answered {answer.status} to {path}: {message}")
        return answer.json()

    def _send(self, path: str, body: dict, *, timeout_s: float) -> Answer:
        """Send a request; again while nothing listens, as the supervisor makes a socket again that
        somebody removed."""
        deadline = time.monotonic() + UNSERVED_S
        while True:
            try:
                return send_blocking(
                    self._socket_path, "POST", path, body,
                    server="control.sock", timeout_s=timeout_s,
                )  # fmt: skip
            except ChildDied as error:
                is_unserved = isinstance(error.__cause__, FileNotFoundError)
                if not is_unserved or time.monotonic() > deadline:
                    raise
            time.sleep(UNSERVED_PAUSE_S)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {k: float(v) for k, v in metrics.items() if math.isfinite(v)}
