"""Oracles, and which of them draw for several problems: on a GPU, contexts are what is scarce.

Called by `trial.references` and `trial.gpu.references`, and by `timing.baseline` for the processes
that time references. Promises: no problem meets changes that another one's code made to torch. So
an oracle is kept only while all that it ran could leave nothing behind (`is_contained`); any other
has one of its own, which ends with its draw, as does one whose draw failed. At most `num_kept` are
kept; a draw that finds all of them at work waits for one.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.children.kept import KeptChildren
from forge.evalpool.judge.children.spawner import SandboxedChild, ZygoteGone
from forge.evalpool.judge.trial.host_code import host_code

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.evalpool.judge.children.spawner import Spawner
    from forge.records.problem import ReferenceModule


OF_PROCESS = re.compile(r"\b(cuda|compile|backends|triton)\b")
"""Names of torch that a capture gives another meaning: here they may leave something behind."""
FUNCTION = re.compile(r"^def (\w+)", re.MULTILINE)


def is_contained(problem: ReferenceModule) -> bool:
    """True if the reference does nothing that outlives it, with all functions of its file: by the
    same rules as a candidate that shares its child. To doubt one wrongly costs time alone."""
    named = "".join(f"{name}, " for name in FUNCTION.findall(problem.source))
    code = f"{problem.source}\n({named})\n"
    is_plain = host_code(code, entry_point=problem.entry_point).is_shareable
    return is_plain and not OF_PROCESS.search(problem.source)


class OutOfMemory(Exception):
    """An oracle needed more memory than it may have."""


class Oracles:
    """One judge's. Safe to call from several threads."""

    def __init__(self, spawner: Spawner, *, num_kept: int, role: str = "oracle") -> None:
        self._spawner = spawner
        self._kept = KeptChildren(spawner, role=role, is_released=False)
        self._free = threading.Semaphore(num_kept)
        self._spent = set[SandboxedChild]()

    @contextmanager
    def lent(self, problem: ReferenceModule, *, is_clean: bool = True) -> Iterator[SandboxedChild]:
        """One for a draw of a problem, which may be asked for another once the block has ended
        well. Raises ZygoteGone or WeakSandbox, but not behind a draw that is done: it may hold
        memory of the card that somebody must free.

        Args:
            is_clean: what is asked of it leaves nothing behind, whatever the problem is.
        """
        # Without a sandbox a candidate could enter the process that draws for the next one.
        is_shared = is_clean and is_contained(problem) and self._kept.can_keep
        with self._free if is_shared else nullcontext():
            take = self._kept.take if is_shared else self._kept.fresh
            one = take(source=problem.source)
            try:
                yield one.child
            except BaseException as error:
                self._end_failed(one.child, error)
                raise
            if is_shared and one.child not in self._spent:
                self._kept.give_back(one)
            else:
                self._spent.discard(one.child)
                self._kept.end(one)

    def spend(self, child: SandboxedChild) -> None:
        """A lent one serves no other problem: what it did left something behind."""
        self._spent.add(child)

    def clear(self) -> None:
        """Ends those that wait: no draw is asked for, or something else needs the card's memory."""
        self._kept.close()

    def _end_failed(self, child: SandboxedChild, error: BaseException) -> None:
        """Raises ZygoteGone where it ended with its zygote: no reference is to blame for that; and
        OutOfMemory where the memory cap killed it."""
        self._spent.discard(child)
        if isinstance(error, frames.PeerGone):
            if self._spawner.ended(child).is_out_of_memory:
                raise OutOfMemory from error
        else:
            self._spawner.end(child)
        if not self._spawner.is_current(child):
            raise ZygoteGone("an oracle ended with its zygote") from error
