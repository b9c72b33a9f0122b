"""One verdict for people: what is wrong and where, how fast it is, and how it was judged.

Called by `forge judge`. What a candidate wrote is shown, never obeyed: control characters are made
visible, and texts are no markup.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.commands.judge.histogram import WIDTH, histogram
from forge.records import Reason, Status
from forge.views.text.numbers import percent
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from forge.commands.judge.files import Job
    from forge.commands.judge.judge import Question
    from forge.records import Timing, Verdict
    from forge.records.verdict import KernelTime

CONTEXT_LINES = 3
"""Before and after the line that failed."""
MAX_LINE = 160
"""Characters of a line of source that are shown."""
MAX_KERNELS = 20
PROFILERS = {
    "ncu": "ncu --set full python FILE",
    "nsys": "nsys profile python FILE",
    "rocprofv3": "rocprofv3 --kernel-trace -- python FILE",
}
AGAIN: dict[str, str] = {
    Reason.REFERENCE_FAILED: "the problem's own Model failed; --override makes a problem smaller"
}
"""What helps where judging again does not, by reason."""
STYLES = {Status.CORRECT: "bold green", Status.INFRA_ERROR: "bold yellow"}
WEAK = {"none": ": the candidate could reach files, sockets and other processes"}


def render(verdict: Verdict, *, job: Job, question: Question) -> RenderableType:
    """The whole report."""
    head = Text(f"{verdict.status} ({printable(verdict.reason)})")
    head.stylize(STYLES.get(verdict.status, "bold red"))
    parts: list[RenderableType] = [head]
    if verdict.detail:
        parts.append(Text(printable(verdict.detail)))
    parts += _excerpt(verdict.detail, job.code)
    parts += _times(verdict, question)
    if question.is_profiled:
        parts += _profile(verdict)
    parts += [Text(""), *(Text(printable(line), style="dim") for line in _circumstances(verdict))]
    return Group(*parts)


def _excerpt(detail: str, code: str) -> Iterator[Text]:
    """The lines around the one that the judge names."""
    named = re.match(r"line (\d+): ", detail)
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


def _times(verdict: Verdict, question: Question) -> Iterator[Text]:
    timing = verdict.timing
    if timing is None:
        if verdict.status is Status.CORRECT:
            yield Text("")
            yield Text(f"not timed: {_why_untimed(verdict, question)}")
        return
    yield Text("")
    yield Text(f"speed-up {timing.speedup:.2f}, at least {timing.speedup_low:.2f}", style="bold")
    for name, time_us, spread_us in (
        ("candidate", timing.candidate_us, timing.candidate_spread_us),
        ("baseline", timing.baseline_us, timing.baseline_spread_us),
    ):
        yield Text(f"{name:<9}  {time_us:.1f} us, interquartile range {spread_us:.1f} us")
    if rates := ", ".join(_rates(timing)):
        yield Text(rates)
    if verdict.profile is not None and verdict.profile.candidate_samples_us:
        yield Text("")
        yield Text(f"{'us':>10}  {'candidate':<{WIDTH}}  baseline")
        samples = verdict.profile.candidate_samples_us, verdict.profile.baseline_samples_us
        yield from (Text(line) for line in histogram(*samples))


def _why_untimed(verdict: Verdict, question: Question) -> str:
    if verdict.device == "cpu":
        return "there is no GPU time on a cpu"
    return "it was not asked for" if not question.is_timed else "judge.timing is off there"


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
        yield Text("profile: there is no GPU time on a cpu")
    elif verdict.profile is None or not verdict.profile.kernels:
        yield Text("profile: no kernel was seen; only what is correct is profiled")
    else:
        yield _kernel_table(verdict.profile.kernels)
    found = [name for name in PROFILERS if shutil.which(name)]
    if not found:
        yield Text(f"none of {', '.join(PROFILERS)} is installed here")
    for name in found:
        yield Text(
            f"{name} is installed: {PROFILERS[name]} looks deeper; it runs the file outside the "
            "sandbox, so read it first"
        )


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
    if verdict.status is Status.INFRA_ERROR:
        again = AGAIN.get(verdict.reason, "judge it again")
        yield f"this says nothing of the candidate: {again}"
        return
    launches = f"{verdict.num_launches} launch{'' if verdict.num_launches == 1 else 'es'}"
    share = "" if verdict.torch_share is None else f", torch work {percent(verdict.torch_share)}"
    yield f"{launches} a call{share}; on {verdict.device}"
    weakness = WEAK.get(verdict.isolation, "")
    yield f"isolation {verdict.isolation}, memory cap {verdict.caps}{weakness}"
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in verdict.phase_s.items())
    yield f"seconds: {phases or 'none'}"
