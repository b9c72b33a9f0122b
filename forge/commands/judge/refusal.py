"""The verdict on a source that no judge would run: it needs no judge, which takes seconds to start.

Called by `forge judge` and `forge.api`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forge.evalpool.judge.channel.words import clean
from forge.evalpool.judge.trial.source import check_source
from forge.records import Verdict

if TYPE_CHECKING:
    from forge.records.problem import ReferenceModule

NOT_RUN = "not run"
"""Isolation of a candidate that was refused by its source alone."""


def refuse(problem: ReferenceModule, code: str) -> Verdict | None:
    """The verdict on a source with a fault that needs no run to be seen; None for any other."""
    began = time.monotonic()
    found = check_source(code, entry_point=f"{problem.entry_point}New")
    if found is None:
        return None
    return Verdict(
        status=found.status,
        reason=found.reason,
        detail=clean(found.detail),
        isolation=NOT_RUN,
        phase_s={"source": time.monotonic() - began},
    )
