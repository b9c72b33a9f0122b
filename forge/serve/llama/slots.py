"""The running sequences by llama.cpp's sequence id, and the stages of a request before it runs:
prompt to evaluate, waiting for slots, starting.

Owned by `engine`. Promise: the lowest free id is used first. llama.cpp evaluates sequences as one
graph only if their ids are consecutive, so a hole costs up to a third of the speed (measured);
`hole` finds the move that closes one.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.serve.engine.rows import Row

if TYPE_CHECKING:
    import numpy as np

    from forge.serve.port import EngineSample


class Slots:
    """Ids 0 to num_slots - 1: free, held by a prompt under evaluation, or running a sample."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self.rows: dict[int, Row] = {}
        """Running samples by id."""

    @property
    def running(self) -> list[int]:
        """Ids that run a sample, ascending."""
        return sorted(self.rows)

    @property
    def num_free(self) -> int:
        """Number of free ids."""
        return len(self._free)

    def hold(self) -> int:
        """Reserve the lowest free id."""
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        """Make an id free."""
        bisect.insort(self._free, slot)

    def enter(self, slot: int, sample: EngineSample) -> None:
        """Run a sample under a reserved id, which continues the tokens that it has."""
        self.rows[slot] = Row.of(sample)

    def leave(self, slot: int) -> EngineSample:
        """Remove a sample, with its tokens. The id stays reserved."""
        return self.rows.pop(slot).leave()

    def hole(self) -> tuple[int, int] | None:
        """The highest running id and a free one below it, if there is one."""
        highest = max(self.rows, default=-1)
        if not self._free or self._free[0] > highest:
            return None
        return highest, self._free[0]

    def move(self, source: int, target: int) -> None:
        """Change the id of a running sequence. Both ids are reserved afterwards."""
        self._free.remove(target)
        self.rows[target] = self.rows.pop(source)


@dataclass(slots=True, eq=False, kw_only=True)
class Prefill:
    """Tokens to evaluate before samples can start."""

    tokens: np.ndarray
    samples: list[EngineSample]
    done: int = 0
    slot: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Fork:
    """An evaluated prompt whose samples wait for slots."""

    prefill: Prefill
    state: bytes
    logits: np.ndarray
    """Logits of the prompt's last token. [V]"""


@dataclass(slots=True, eq=False)
class Starts:
    """Samples that get their first token in this step: the slot and the row of logits of each."""

    slots: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)
