"""Publishing beside training: a thread writes and offers the weights while the trainer takes its
next batch.

    step ── copy of the weights ──▶ thread: write ── /publish ──▶ version
      └── take, next step ...          └── at most one; the next publish waits for it

The thread writes a copy, so the weights may change meanwhile. Its error is raised by the next call,
and by `check` while the trainer waits for a batch, which may never come without these weights. Used
on rank 0 only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forge.train.durable import is_kept
from forge.train.trainer.publish.weights import free_dir, save_weights

if TYPE_CHECKING:
    import torch

    from forge.train.trainer.child.control import SupervisorClient
    from forge.train.trainer.child.settings import TrainerSettings

logger = logging.getLogger(__name__)


class Publisher:
    """Runs one publish at a time."""

    def __init__(self) -> None:
        self.version: int | None = None
        """Version of the last publish that has succeeded; None before the first."""
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def weights_version(self) -> int | None:
        """Version of the weights last handed over, also while their publish runs: versions count up
        by one. None until the first publish has succeeded."""
        if self._thread is None or self.version is None:
            return self.version
        return self.version + self._thread.is_alive()

    def start(self, publish: Callable[[], int]) -> None:
        """Wait for the previous publish, then run `publish` in a thread. It returns the version."""
        self.wait()

        def run() -> None:
            try:
                self.version = publish()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="publish", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a publish that has ended."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> float:
        """Wait for the running publish and raise its error. Returns the seconds waited."""
        began = time.monotonic()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return time.monotonic() - began


def write_and_offer(
    policy: Any,
    weights: dict[str, torch.Tensor],
    probe: dict[str, Any] | None,
    *,
    settings: TrainerSettings,
    client: SupervisorClient,
    step: int,
    copied_s: float,
) -> int:
    """Write a grpo step's weights and offer them to every replica; returns their version.

    `weights` is a copy, emptied when it is written; of `policy` only the config is read. `copied_s`
    is the time that the copy and the probe took, for the log."""
    started = time.monotonic()
    path = free_dir(settings.weights_dir, f"grpo-{step:06d}")
    stage = settings.stage
    sync = is_kept(step, steps=stage["steps"], save_every=stage["save_every"])
    save_weights(policy, path, model_dir=settings.model_dir, sync=sync, weights=weights)
    weights.clear()
    saved_s = time.monotonic() - started
    version = client.publish(step=step, path=path, probe=probe)
    logger.info(
        "step %d: version %d, copied in %.3f s, written in %.3f s, published in %.3f s",
        step,
        version,
        copied_s,
        saved_s,
        time.monotonic() - started + copied_s,
    )
    return version
