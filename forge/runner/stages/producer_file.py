"""The producer's state after the newest durable batch, and what the next attempt recalls from it.

Used by `grpo.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forge.rollout.past import Past, recall, still_of_use
from forge.store.layout import write_file
from forge.store.reader import open_run
from forge.store.resume import untrained_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from forge.records import Problem
    from forge.rollout.batches import Batch, BatchPlan
    from forge.rollout.sampling.sampler import Sampler
    from forge.runner.stages.batch_shelf import BatchShelf
    from forge.runner.stages.run_context import RunContext


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


def recall_groups(
    run: RunContext,
    shelf: BatchShelf,
    saved: ProducerFile,
    sampler: Sampler,
    problems: Sequence[Problem],
    plan: BatchPlan,
    step_of: Callable[[int], int],
) -> Past:
    """The groups that an earlier attempt began and did not offer. Restores the sampler. Reads the
    store: call it in a thread."""
    with open_run(run.paths) as reader:
        found = untrained_groups(reader, stage=plan.stage)
    offered = shelf.groups()
    untrained = still_of_use(
        (group for group in found if group.group_id not in offered), plan, step_of=step_of
    )
    if saved.state is None:
        return Past(ended=untrained)
    sampler.restore(saved.state["sampler"])
    return recall(saved.state, untrained=untrained, problems=problems)
