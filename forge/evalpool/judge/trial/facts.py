# pyright: strict
"""The judge's knowledge of a problem for the policy: from the reference's own captured program."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.program.format import Op, Origin, Program
from forge.evalpool.judge.program.ops import KINDS, Kind, misuse
from forge.evalpool.judge.program.policy import ProblemFacts, facts_of, kinds_of
from forge.evalpool.judge.program.walk import variants
from forge.evalpool.judge.trial.captures import NoAnswers
from forge.evalpool.judge.trial.trial import Decided, Phases
from forge.records.reason import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from forge.evalpool.judge.trial.captures import Captures
    from forge.records.problem import ReferenceModule

logger = logging.getLogger(__name__)

MAX_PROBLEMS = 256
"""Of 1 to 2 kB each. A run seldom comes back to a problem before others have been played."""
READ = "_local_scalar_dense"
"""`x.item()`, which decides on sizes and computes nothing."""
CHANCE = frozenset({Status.TIMEOUT, Status.INFRA_ERROR})
"""Ends of a capture that depend on the machine and its load."""


class Facts:
    """Facts of problems, kept. Safe to call from several threads."""

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, ProblemFacts] = OrderedDict()

    def of(
        self,
        problem: ReferenceModule,
        request: Mapping[str, Any],
        *,
        io_bytes: int,
        names: Collection[str],
        changed: Collection[str] = (),
    ) -> ProblemFacts:
        """Facts of a problem.

        Args:
            request: `request` of a draw of the problem.
            io_bytes: bytes of its inputs and outputs, which stand for the necessary work of a
                reference without a program: how much of a table it reads is unknown.
            names, changed: torch's operations of one call, and parameters that it changes: what is
                known of a reference without a program.

        Raises:
            ZygoteGone, WeakSandbox: no child can be had.
        """
        text = f"{problem.entry_point}\0{problem.precision}\0{problem.source}\0{io_bytes}{changed}"
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        known = ProblemFacts(
            num_bytes=io_bytes,
            kinds=kinds_of_names(names),
            written_parameters=frozenset(changed),
        )
        found, is_sure = self._make(problem, request, known=known)
        if not is_sure:
            return found
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MAX_PROBLEMS:
                self._kept.popitem(last=False)
        return found

    def _make(
        self,
        problem: ReferenceModule,
        request: Mapping[str, Any],
        *,
        known: ProblemFacts,
    ) -> tuple[ProblemFacts, bool]:
        """Facts, and True if another capture would give the same."""
        asked = {**request, "precision": problem.precision, "cast": True, "drawn": None}
        try:
            captured = self._captures.capture(
                problem.source,
                asked,
                entry_point=problem.entry_point,
                phases=Phases(),
                answers=NoAnswers(),
            )
        except Decided as decided:
            logger.info("%s: no program: %s", problem.problem_id, decided.finding.detail)
            is_sure = decided.finding.status not in CHANCE
            return known, is_sure
        return known_facts(captured.program, io_bytes=known.num_bytes), True


def known_facts(reference: Program, *, io_bytes: int) -> ProblemFacts:
    """Facts of a reference's program; few where it has operations outside the table.

    Args:
        io_bytes: bytes of its inputs and outputs.
    """
    nodes = next(variants(reference))
    if any(isinstance(placed.node, Op) and misuse(placed.node) for placed in nodes):
        return ProblemFacts(num_bytes=io_bytes, kinds=kinds_of(reference))
    facts = facts_of(reference)
    empty = {
        one.index for one in reference.storages if one.origin is Origin.INPUT and one.num_bytes == 0
    }
    is_given = len(facts.free_outputs) == len(reference.outputs) and not facts.written_inputs
    return replace(
        facts,
        needed_inputs=facts.needed_inputs - empty,
        # A reference that returns what it is given poses a copy: a kernel has to make it.
        free_outputs=frozenset() if is_given else facts.free_outputs,
    )


def kinds_of_names(names: Collection[str]) -> frozenset[Kind]:
    """Kinds of a reference's operations by their names alone, without namespace and overload.

    A reference that reads a value on the host has no program: `x.roll(int(n))` moves, all the same.
    A cast counts as a move, though it may compute; an operation outside the table as heavy.
    """
    worked = [name for name in names if name != READ]
    return frozenset(KINDS.get(name.rstrip("_"), Kind.HEAVY) for name in worked or [""])
