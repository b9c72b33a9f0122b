# pyright: strict
"""The shapes of a problem: lists them, and folds their results into one verdict or examination.

Shapes are those of module constants, and the sets of `get_input_sets()`, which a judge's sandboxed
child lists once for each problem. A candidate is judged on each, up to the first on which it is not
correct. All times, rates and speed-ups of the fold are geometric means, so baseline_us /
candidate_us is the speed-up; the mean of the lower ends is at most the lower end of the mean's own
interval, the cautious choice for rewards.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from forge.records.examination import Examination, Flag
from forge.records.problem import (
    MAX_SHAPES,
    ReferenceModule,
    Shape,
    has_input_sets,
    select_input_set,
)
from forge.records.reason import Status
from forge.records.verdict import OtherVerdict, ShapeVerdict, Timing, Verdict

MAX_LISTED = 1024
PASSING = frozenset({Flag.CRASH, Flag.SLOW, Flag.OUT_OF_MEMORY})
"""Flags that a busy or broken machine may have caused: another listing may succeed."""


class ShapesUnknown(Exception):
    """The shapes of a problem cannot be listed, or are too many; one line, and its flags."""

    def __init__(self, message: str, *, flags: Mapping[Flag, str]) -> None:
        super().__init__(message)
        self.flags = dict(flags)


class ShapeLister:
    """Lists the shapes of problems and remembers them."""

    def __init__(self, ask: Callable[[ReferenceModule], Awaitable[Examination]]) -> None:
        """`ask` has a judge list the input sets of a problem."""
        self._ask = ask
        self._listed: OrderedDict[str, Examination] = OrderedDict()

    async def list_shapes(self, problem: ReferenceModule) -> tuple[Shape, ...]:
        """The shapes of a problem; empty if `problem.source` is all. Raises ShapesUnknown."""
        shapes: list[Shape] = []
        is_listed = False
        for shape in problem.shapes or (Shape(name="", source=problem.source),):
            if not has_input_sets(shape.source):
                shapes.append(shape)
                continue
            is_listed = True
            names = await self._names(replace(problem, source=shape.source, shapes=()))
            for number, name in enumerate(names):
                title = ": ".join(filter(None, (shape.name, name)))
                source = select_input_set(shape.source, number)
                shapes.append(Shape(name=title, source=source))
        if len(shapes) > MAX_SHAPES:
            message = f"{len(shapes)} shapes; at most {MAX_SHAPES}"
            raise ShapesUnknown(message, flags={Flag.UNSUPPORTED: message})
        return tuple(shapes) if is_listed else problem.shapes

    async def _names(self, problem: ReferenceModule) -> tuple[str, ...]:
        found = self._listed.get(problem.source)
        if found is None:
            found = await self._ask(problem)
            if not PASSING & found.flags.keys():
                self._listed[problem.source] = found
            while len(self._listed) > MAX_LISTED:
                self._listed.popitem(last=False)
        if found.flags or not found.shapes:
            facts = next(iter(found.flags.values()), "no set was listed")
            flags = found.flags or {Flag.DOES_NOT_RUN: facts}
            raise ShapesUnknown(f"get_input_sets() of {problem.problem_id}: {facts}", flags=flags)
        return found.shapes


MAX_DETAIL_CHARACTERS = 2000
"""Maximum length of a detail, as in the judge."""


def fold_verdicts(names: Sequence[str], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a candidate from its verdicts on the first shapes, of which all but the last
    are correct, and the last is if all shapes were judged."""
    last = verdicts[-1]
    phase_s = defaultdict[str, float](float)
    for phase, seconds in (pair for each in verdicts for pair in each.phase_s.items()):
        phase_s[phase] += seconds
    shapes = tuple(
        ShapeVerdict(name=name, status=each.status, timing=each.timing)
        for name, each in zip(names, verdicts, strict=False)
    )
    folded = replace(
        last if not last.is_correct else verdicts[0],
        shapes=shapes,
        phase_s=dict(phase_s),
        also=_fold_also(names, verdicts),
    )
    if not last.is_correct:
        place = f"{describe_place(names, len(verdicts) - 1)}: "
        return replace(folded, timing=None, detail=(place + last.detail)[:MAX_DETAIL_CHARACTERS])
    timings = [each.timing for each in verdicts if each.timing is not None]
    shares = [each.torch_share for each in verdicts if each.torch_share is not None]
    return replace(
        folded,
        timing=mean_timing(timings) if len(timings) == len(verdicts) else None,
        num_launches=max(each.num_launches for each in verdicts),
        torch_share=max(shares, default=None),
    )


def mean_timing(timings: Sequence[Timing]) -> Timing:
    """Geometric means of several timings; each spread is the mean time times the mean of the
    relative spreads. A rate that one of them lacks is None."""

    def mean(name: str) -> Any:
        """0 if a value is."""
        values = [getattr(each, name) for each in timings]
        if None in values:
            return None
        return statistics.geometric_mean(values) if min(values) > 0 else 0.0

    means = {one.name: mean(one.name) for one in fields(Timing)}
    for kind in ("candidate", "baseline"):
        time, spread = f"{kind}_us", f"{kind}_spread_us"
        relative = [getattr(each, spread) / getattr(each, time) for each in timings]
        means[spread] = means[time] * statistics.fmean(relative)
    return Timing(**means)


def fold_examinations(
    problem_id: str, names: Sequence[str], examinations: Sequence[Examination]
) -> Examination:
    """The examination of a problem from those of its shapes: every flag of a shape, with the first
    shape that has it; outputs of the first, the slowest forward pass."""
    flags: dict[Flag, str] = {}
    for number, each in enumerate(examinations):
        for flag, facts in each.flags.items():
            flags.setdefault(flag, f"{describe_place(names, number)}: {facts}")
    times = [each.forward_s for each in examinations if each.forward_s is not None]
    return Examination(
        problem_id=problem_id,
        outputs=examinations[0].outputs,
        forward_s=max(times, default=None),
        flags=flags,
        num_unchecked=sum(each.num_unchecked for each in examinations),
        shapes=tuple(names),
    )


def describe_place(names: Sequence[str], index: int) -> str:
    """`shape 2 of 3 (N=4096, M=100)`."""
    return f"shape {index + 1} of {len(names)} ({names[index]})"


def _fold_also(names: Sequence[str], verdicts: Sequence[Verdict]) -> dict[str, OtherVerdict]:
    """Verdicts of further protocols: the first that is not correct. One that is correct on fewer
    than all shapes names their number."""
    also: dict[str, OtherVerdict] = {}
    for protocol in dict.fromkeys(name for each in verdicts for name in each.also):
        for number, verdict in enumerate(verdicts):
            if (other := verdict.also.get(protocol)) is None:
                continue
            also[protocol] = other
            if other.status is not Status.CORRECT:
                detail = f"{describe_place(names, number)}: {other.detail}"
                also[protocol] = replace(other, detail=detail[:MAX_DETAIL_CHARACTERS])
                break
            if len(verdicts) < len(names):
                detail = f"on {number + 1} of {len(names)} shapes; the others were not judged"
                also[protocol] = replace(other, detail=detail)
    return also
