"""The producer's state after the newest durable batch, for the next attempt. Used by `grpo.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forge.store.layout import write_file

if TYPE_CHECKING:
    from pathlib import Path

    from forge.rollout.batches import Batch


class ProducerFile:
    """A file that always matches the newest batch file, also after SIGKILL at any moment.

    The new state is written beside the old one before its batch is offered, and replaces it once
    the batch is on disk.
    """

    def __init__(self, path: Path, *, offered: int) -> None:
        """Read the state; `offered` is the step of the newest batch file, 0 for none."""
        self.path, self._next = path, path.with_suffix(".next")
        if offered and self._read(self._next)["step"] == offered:
            self.settle()
        found = self._read(path)
        self.step: int = found["step"]
        """Step of the last batch; 0 for none."""
        self.state: dict[str, Any] | None = found["state"]

    def prepare(self, batch: Batch) -> None:
        """Call before the batch is offered."""
        write_file(self._next, json.dumps({"step": batch.step, "state": dict(batch.state)}))

    def settle(self) -> None:
        """Call once the batch is offered."""
        self._next.replace(self.path)

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        return json.loads(path.read_text()) if path.exists() else {"step": 0, "state": None}
