# pyright: strict
"""Cache of verdicts on correctness, by candidate and kind of judge: a small model repeats itself.

Called by `pool.py`. Promises: no time is cached, and no verdict that a busy or broken machine may
have caused; the cache holds at most `MAX_REMEMBERED` verdicts, of about 1 kB each, and
their programs, of 1 to 5 kB.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.evalpool.seating import JudgeKind
from forge.records.verdict import JudgeOptions, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from forge.records.problem import ReferenceModule

MAX_REMEMBERED = 2048
"""2 MB, and 10 MB with programs. A repeated candidate is nearly always a recent one: a cache
of 64 found all repeats of 755 candidates of a run."""
NO_PHASES: Mapping[str, float] = {}
"""Phases of every cached verdict."""
TIMING_PHASE = "time"
"""A candidate that fails in this phase was found correct, and may pass the next measurement."""


class VerdictCache:
    """Bounded map from (candidate, kind of judge) to the verdict without its times."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[tuple[bytes, JudgeKind], Verdict] = OrderedDict()
        self._kinds: dict[JudgeKind, JudgeKind] = {}
        """Each kind once: verdicts arrive with texts of their own."""

    def __len__(self) -> int:
        return len(self._verdicts)

    def find(self, key: bytes, *, kinds: Iterable[JudgeKind]) -> Verdict | None:
        """The cached verdict of the first of these kinds; None without one."""
        for kind in kinds:
            verdict = self._verdicts.get((key, kind))
            if verdict is not None:
                self._verdicts.move_to_end((key, kind))
                return verdict
        return None

    def remember(self, key: bytes, verdict: Verdict) -> None:
        """Caches a verdict, unless it is an infra error, a timeout, or was found while timing."""
        if not verdict.status.is_scored or verdict.status is Status.TIMEOUT:
            return
        if TIMING_PHASE in verdict.phase_s and not verdict.is_correct:
            return
        kind = JudgeKind(
            device=verdict.device, isolation=verdict.isolation, harness=verdict.harness
        )
        kind = self._kinds.setdefault(kind, kind)
        self._verdicts[key, kind] = replace(
            verdict, timing=None, profile=None, phase_s=NO_PHASES,
            device=kind.device, isolation=kind.isolation, harness=kind.harness,
        )  # fmt: skip
        while len(self._verdicts) > MAX_REMEMBERED:
            self._verdicts.popitem(last=False)


def candidate_key(problem: ReferenceModule, code: str, *, has_program: bool = False) -> bytes:
    """Hash of all that decides a verdict; names and splits of problems do not.

    Args:
        has_program: the verdict has the candidate's program in it.
    """
    digest = hashlib.sha256(b"program" if has_program else b"")
    for part in (problem.source, problem.entry_point, problem.precision, code):
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.digest()


def is_enough(verdict: Verdict, options: JudgeOptions) -> bool:
    """True if a cached verdict answers a request. Times are measured for each request that asks for
    them, since cards and clocks drift; a profile is not kept."""
    is_timed = verdict.is_correct and verdict.device != "cpu" and options.timing
    return not (is_timed or options.profile)
