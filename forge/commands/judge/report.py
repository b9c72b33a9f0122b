"""Report of one verdict: what is wrong and where, times, how it was judged. Table of many
verdicts: one line each, and a summary.

Called by `forge judge`. A candidate's text cannot control the terminal: control characters are
escaped, and texts are not parsed as markup.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.adapters.answering import NOT_RUN
from forge.commands.explained import explain_packed
from forge.evalpool.site_packages import KEY as PACKAGES_KEY
from forge.records import Reason, Status
from forge.records.rules import rules_in_words
from forge.views.text.numbers import NONE, percent
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from forge.commands.judge.judge import JudgeJob, JudgingRequest
    from forge.records import Timing, Verdict
    from forge.records.verdict import KernelTime, OtherVerdict

CONTEXT_LINES = 3
"""Lines shown before and after the line that failed."""
MAX_LINE = 160
"""Maximum length of a shown line of source."""
MAX_KERNELS = 20
STYLES = {Status.CORRECT: "green", Status.UNJUDGEABLE: "yellow", Status.INFRA_ERROR: "yellow"}
"""Colours of statuses; any other one is red."""
MAX_DETAIL = 120
"""Maximum length of a detail in the table."""
NO_PROGRAM = "no program: the candidate failed before one was captured, or it is too large"
NO_RESULTS = "gave no results within"
"""Part of the detail of a reference that took too long."""
WEAK = {"none": ": the candidate could reach files, sockets and other processes"}


def render(verdict: Verdict, *, job: JudgeJob, request: JudgingRequest) -> RenderableType:
    """The report as text and tables."""
    head = Text(f"{verdict.status} ({printable(verdict.reason)})")
    head.stylize(f"bold {STYLES.get(verdict.status, 'red')}")
    parts: list[RenderableType] = [head]
    if verdict.detail:
        parts.append(Text(printable(verdict.detail)))
    parts += _excerpt(verdict.detail, job.code)
    parts += [
        Text(printable(f"{name}: {other.status} ({other.reason}) {other.detail}".rstrip()))
        for name, other in verdict.also.items()
    ]
    parts += _shapes(verdict, request)
    parts += _times(verdict, request)
    if request.is_profiled:
        parts += _profile(verdict)
    if request.is_explained:
        parts += [Text(""), Text(printable(explain_packed(verdict.program) or NO_PROGRAM))]
    parts += [Text(""), *(Text(printable(line), style="dim") for line in _circumstances(verdict))]
    return Group(*parts)


def _excerpt(detail: str, code: str) -> Iterator[Text]:
    """The lines around the line that the judge names."""
    named = re.match(r"(?:shape \d+ of \d+ \(.*\): )?line (\d+): ", detail)
    lines = code.split("\n")
    if named is None or not 0 < int(named[1]) <= len(lines):
        return
    failing = int(named[1])
    first, last = max(1, failing - CONTEXT_LINES), min(len(lines), failing + CONTEXT_LINES)
    yield Text("")
    for number in range(first, last + 1):
        mark = ">" if number == failing else " "
        source = printable(lines[number - 1].replace("\t", "    "))[:MAX_LINE]
        text = Text(f"{mark} {number:4d} | {source}".rstrip(), overflow="ellipsis", no_wrap=True)
        yield text if number != failing else Text.styled(text.plain, "bold")


def _shapes(verdict: Verdict, request: JudgingRequest) -> Iterator[Text]:
    """One line for each shape that was judged."""
    if not verdict.shapes:
        return
    yield Text("")
    width = max(len(shape.name) for shape in verdict.shapes)
    for shape in verdict.shapes:
        line = f"{shape.name:<{width}}  {shape.status}"
        if (timing := shape.timing) is not None:
            line += (
                f"  speed-up {timing.speedup:.2f}, at least {timing.speedup_low:.2f}: "
                f"{timing.candidate_us:.1f} us, baseline {timing.baseline_us:.1f} us"
            )
        yield Text(printable(line), style=STYLES.get(shape.status, "red"))
    if request.is_profiled or request.is_explained:
        of = verdict.shapes[0 if verdict.is_correct else -1]
        yield Text(printable(f"profile and program below: {of.name}"))


def _times(verdict: Verdict, request: JudgingRequest) -> Iterator[Text]:
    timing = verdict.timing
    if timing is None:
        if verdict.status is Status.CORRECT:
            yield Text("")
            yield Text(f"not timed: {_why_untimed(verdict, request)}")
        return
    yield Text("")
    mean = f", geometric mean of {len(verdict.shapes)} shapes" if len(verdict.shapes) > 1 else ""
    speedup = f"speed-up {timing.speedup:.2f}, at least {timing.speedup_low:.2f}{mean}"
    yield Text(speedup, style="bold")
    for name, time_us, spread_us in (
        ("candidate", timing.candidate_us, timing.candidate_spread_us),
        ("baseline", timing.baseline_us, timing.baseline_spread_us),
    ):
        yield Text(f"{name:<9}  {time_us:.1f} us, interquartile range {spread_us:.1f} us")
    if rates := ", ".join(_rates(timing)):
        yield Text(rates)


def _why_untimed(verdict: Verdict, request: JudgingRequest) -> str:
    if verdict.device == "cpu":
        return "a CPU has no GPU time"
    return "not requested" if not request.is_timed else "judge.timing is off there"


def _rates(timing: Timing) -> Iterator[str]:
    if timing.achieved_gbps is not None:
        yield f"{timing.achieved_gbps:.4g} GB/s"
    if timing.achieved_tflops is not None:
        yield f"{timing.achieved_tflops:.4g} TFLOP/s"
    if timing.roofline_share is not None:
        yield f"{percent(timing.roofline_share)} of the roofline"


def _profile(verdict: Verdict) -> Iterator[RenderableType]:
    yield Text("")
    if verdict.device == "cpu":
        yield Text("profile: a CPU has no GPU time")
    elif verdict.profile is None or not verdict.profile.kernels:
        yield Text("profile: no kernels; only correct candidates are profiled")
    else:
        yield _kernel_table(verdict.profile.kernels)


def _kernel_table(kernels: tuple[KernelTime, ...]) -> Table:
    table = Table("kernel", "calls", "us", "share", "compiled from", box=None, pad_edge=False)
    for column in table.columns[1:4]:
        column.justify = "right"
    whole_us = sum(kernel.total_us for kernel in kernels) or 1.0
    for kernel in sorted(kernels, key=lambda one: -one.total_us)[:MAX_KERNELS]:
        table.add_row(
            Text(printable(kernel.name)[:MAX_LINE]),
            str(kernel.num_calls),
            f"{kernel.total_us:.1f}",
            percent(kernel.total_us / whole_us),
            "the candidate" if kernel.is_own else "torch or a library",
        )
    return table


def _circumstances(verdict: Verdict) -> Iterator[str]:
    if not verdict.status.is_scored:
        yield f"not a verdict on the candidate: {_advice(verdict)}"
        return
    if verdict.isolation == NOT_RUN:
        yield "refused by its source alone; nothing was run"
        return
    launches = f"{verdict.num_launches} launch{'' if verdict.num_launches == 1 else 'es'}"
    own = verdict.own_share
    share = "" if own is None else f", own share of the work {percent(own)}"
    yield f"{launches} a call{share}; on {verdict.device}"
    if verdict.evidence:
        yield f"evidence {verdict.evidence}"
    if verdict.rules:
        yield rules_in_words(verdict.rules)
    if verdict.status is Status.TIMEOUT:
        yield "--timeout gives each phase more time"
    weakness = WEAK.get(verdict.isolation, "")
    yield f"isolation {verdict.isolation}, memory cap {verdict.caps}{weakness}"
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in verdict.phase_s.items())
    yield f"seconds: {phases or 'none'}"


def _advice(verdict: Verdict) -> str:
    """Advice on a verdict that says nothing about the candidate."""
    if verdict.status is Status.INFRA_ERROR:
        return "judge it again"
    if verdict.reason == Reason.PROBLEM_TOO_LARGE:
        return "--override makes the problem smaller, e.g. --override batch_size=16"
    if NO_RESULTS in verdict.detail:
        return "--timeout gives the reference more time, --override makes the problem smaller"
    if PACKAGES_KEY in verdict.detail or "model hub" in verdict.detail:
        return "the problem lacks what the line above names"
    return "the problem's own code fails or cannot be compared; forge problems check says more"


def render_table(
    jobs: Sequence[JudgeJob], verdicts: Sequence[Verdict], *, skipped: Mapping[str, str]
) -> Group:
    """The table, the summary, and the files that were not judged."""
    is_timed = any(verdict.timing is not None for verdict in verdicts)
    also = list(dict.fromkeys(name for verdict in verdicts for name in verdict.also))
    names = ["candidate", "problem", "verdict", "reason"]
    names += ["own share", *also] if also else []
    table = Table(*names, *(["speed-up"] if is_timed else []), "", box=None, pad_edge=False)
    for job, verdict in zip(jobs, verdicts, strict=True):
        cells = [
            Text(printable(job.name)),
            Text(printable(job.problem.problem_id)),
            Text(verdict.status, style=STYLES.get(verdict.status, "red")),
            Text(printable(verdict.reason)),
        ]
        if also:
            cells.append(Text(percent(verdict.own_share)))
            cells += [_other(verdict.also.get(name)) for name in also]
        if is_timed:
            cells.append(Text(f"{verdict.timing.speedup:.2f}" if verdict.timing else ""))
        table.add_row(*cells, Text(_short_detail(verdict)))
    rules = {verdict.rules for verdict in verdicts} - {"", "forge"}
    head = f"by {rules_in_words(*rules)}: " if len(rules) == 1 else ""
    parts = [table, Text(""), Text(f"{head}{summary(verdicts)}")]
    for name in also:
        found = [verdict.also[name] for verdict in verdicts if name in verdict.also]
        parts.append(Text(f"by {rules_in_words(name)}: {summary(found)}"))
    if skipped:
        plural = "" if len(skipped) == 1 else "s"
        parts += [Text(""), Text(f"{len(skipped)} file{plural} not judged:", style="yellow")]
        parts += [Text(printable(reason)) for reason in skipped.values()]
    return Group(*parts)


def _other(verdict: OtherVerdict | None) -> Text:
    """A cell of a further protocol."""
    if verdict is None:
        return Text(NONE)
    if verdict.status is Status.CORRECT:
        return Text("correct", style="green")
    return Text(printable(f"{verdict.status} ({verdict.reason})"), style="red")


def summary(verdicts: Sequence[Verdict | OtherVerdict]) -> str:
    """`12 candidates: 7 correct, 3 wrong, 2 compile_error`."""
    counts = Counter(str(verdict.status) for verdict in verdicts)
    order = [str(status) for status in Status if counts[str(status)]]
    listed = ", ".join(f"{counts[status]} {status}" for status in order)
    return f"{len(verdicts)} candidate{'' if len(verdicts) == 1 else 's'}: {listed}"


def _short_detail(verdict: Verdict) -> str:
    detail = printable(" | ".join(verdict.detail.split("\n")))
    return detail if len(detail) <= MAX_DETAIL else f"{detail[: MAX_DETAIL - 1]}…"
