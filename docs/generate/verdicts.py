"""The page of verdicts: every status and reason with its meaning and what to do about it.

Meanings are the docstrings of `forge.records.reason`; advice is in `advice.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from docs.generate.advice import ADVICE
from docs.generate.markdown import anchored, code, page, table, text
from docs.generate.members import member_docs
from forge.records.examination import Flag
from forge.records.reason import Reason, Status, policy_of
from forge.records.rollout import End

INTRO = """\
A verdict has a `status`, the stage at which the judgement ended, and a `reason`, a stable code that
says why. A code may have a parameter after a colon: `deadline:correct` is `deadline` in the phase
`correct`. `detail` is the text for people and for the model: the failing line, the compiler's
message, the first wrong element. In a run, `v_failures` counts both by step
(`forge sql RUN --named failures`), and `forge show RUN --turn ID` prints one verdict.

Two statuses say nothing about the candidate: `unjudgeable` and `infra_error`. They are never
scored, and their turns are masked from training.
[How the judge reaches a verdict](../explanation/judge.md),
[errors by their text](../how-to/troubleshooting.md).
"""
FLAGS = """\
`forge problems check` examines problems before a run; GRPO and searches leave out those that cannot
be judged or that reward an answer that does less than asked (`problems.allow_flagged`).
"""
CODES = """\
*What to do* addresses the author of the kernel, and for `unjudgeable` and `infra_error` the person
who runs the judge. A judgement that ends in `infra_error` or `reference_failed` is repeated once,
on another judge where there is one: a verdict with such a reason is that of the second time.
"""


def verdicts_page() -> str:
    """All statuses, then all reasons by status."""
    statuses = (
        (code(status), text(meaning_of(status)), "yes" if status.is_scored else "no")
        for status in Status
    )
    parts: list[str] = []
    for status in Status:
        rows = [
            (anchored(each, anchor=each), text(meaning_of(each)), text(ADVICE[each].text))
            for each in Reason
            if status in ADVICE[each].statuses
        ]
        parts += [f"### {status}", table(("Reason", "Meaning", "What to do"), rows)]
    return page(
        "Verdicts",
        INTRO,
        "## Statuses",
        table(("Status", "Meaning", "Scored"), statuses),
        "## Reasons",
        CODES,
        *parts,
        "## Ends of a rollout",
        table(("End", "Meaning"), _members(End)),
        "## Flags of a problem",
        FLAGS,
        table(("Flag", "Meaning", "Effect"), _flags()),
        "## Consequences for the judge",
        _consequences(),
    )


def _members(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    return ((code(member), text(meaning_of(member))) for member in kind)


def _flags() -> Iterator[tuple[str, str, str]]:
    for flag, meaning in zip(Flag, _members(Flag), strict=True):
        effect = "cannot be judged" if flag.is_unusable else "rewards less than asked"
        yield (*meaning, effect if flag.is_unusable or flag.is_trivial else "reported only")


def meaning_of(member: StrEnum) -> str:
    """The docstring below a member of an enumeration."""
    return member_docs(type(member))[member.name]


def _consequences() -> str:
    """A table of the reasons that count against a judge, from `forge.records.reason`."""
    rows = [
        (code(each), str(policy.cause))
        for each in Reason
        for status in ADVICE[each].statuses
        if (policy := policy_of(status, each)).cause
    ]
    words = (
        "A verdict may say something about its judge or its GPU. *Cause*: the part that is "
        "blamed (`crowd`: other requests on the same GPU, `outside`: another process of the "
        "machine)."
    )
    return f"{words}\n\n{table(('Reason', 'Cause'), rows)}"
