"""Verdicts on correctness, remembered by candidate and kind of judge: a small model repeats itself.

Called by `pool.py`. Promises: what a busy machine or a broken one may have caused is not kept, nor
is any time; at most `MAX_REMEMBERED` verdicts are.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.evalpool.seating import JudgeKind
from forge.records.verdict import JudgeOptions, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge.records.problem import ReferenceModule

MAX_REMEMBERED = 20_000
TIMING_PHASE = "time"
"""A candidate that failed in it had been found correct; another measurement may say otherwise."""


class VerdictCache:
    """A bounded map from (candidate, kind of judge) to the untimed part of its verdict."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[tuple[str, JudgeKind], Verdict] = OrderedDict()

    def find(self, key: str, *, kinds: Iterable[JudgeKind]) -> Verdict | None:
        """Of the first of these kinds that judged it."""
        for kind in kinds:
            verdict = self._verdicts.get((key, kind))
            if verdict is not None:
                self._verdicts.move_to_end((key, kind))
                return verdict
        return None

    def remember(self, key: str, verdict: Verdict) -> None:
        """But for infra faults, timeouts, and what was found while timing."""
        if verdict.status in (Status.INFRA_ERROR, Status.TIMEOUT):
            return
        if TIMING_PHASE in verdict.phase_s and not verdict.is_correct:
            return
        untimed = replace(verdict, timing=None, profile=None, phase_s={})
        self._verdicts[key, JudgeKind.of(verdict)] = untimed
        while len(self._verdicts) > MAX_REMEMBERED:
            self._verdicts.popitem(last=False)


def candidate_key(problem: ReferenceModule, code: str) -> str:
    """Equal for what is judged alike: names and splits of problems play no part."""
    digest = hashlib.sha256()
    for part in (problem.source, problem.entry_point, problem.precision, code):
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()


def is_enough(verdict: Verdict, options: JudgeOptions) -> bool:
    """Whether a remembered verdict answers a request. A time never does: it is measured for each
    request that asks, as cards and clocks drift."""
    if options.smoke:
        return True
    is_timed = verdict.device != "cpu" and (options.timing or options.profile)
    return not (verdict.is_correct and is_timed)
