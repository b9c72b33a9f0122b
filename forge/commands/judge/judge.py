"""`forge judge`: the candidates of a request with their problems, and the verdicts on them, as a
report of one verdict or a table of several; and `forge problems check`, which examines the problem
files of a directory.

    problem.py  candidate.py   one job       problem.py  folder/   one for each file
    problem.py  -              stdin         folder/     folder/   by name: 3_x.py answers 3_x.py,
    folder/     3_x.py         by name                             or the only problem numbered 3

A file of rows (Parquet, JSON, JSON lines) is a folder of its problems. With a chosen problem, all
candidates answer it. In a folder, files that cannot be judged are listed and the other files are
judged; if none can be judged, each is a line of one ConfigError.

A candidate's text cannot control the terminal: control characters are escaped, and texts are not
parsed as markup.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.adapters.answering import NOT_RUN, refuse
from forge.adapters.pools import MAX_JUDGES, JudgeSettings, checked_constants
from forge.adapters.subjects import STDIN, KnownProblems, find_code, holds_several, read_source
from forge.commands.counter import open_counter
from forge.commands.turn_view import explain_packed
from forge.config.schema import Constant, JudgeTable, RowFormat, find_shape_mistakes
from forge.data.problem_files import Overrides, ProblemFile, find_files
from forge.errors import ConfigError
from forge.evalpool.pool import examine_all, open_private_pool
from forge.evalpool.site_packages import KEY as PACKAGES_KEY
from forge.process.devices import Gpu
from forge.records import Problem, Reason, Status, Verdict
from forge.records.examination import Examination, Flag
from forge.records.verdict import KernelTime, OtherVerdict, rules_in_words
from forge.rollout.play import verdict_without_code
from forge.tools.toolbox import describe_profile
from forge.views.text import NONE, count, launches, percent, printable

MAX_NAME = 256
"""Characters of a path in a message: users paste a source in place of a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    jobs: Sequence[JudgeJob]
    verdicts: Sequence[Verdict]
    request: JudgingRequest
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reasons why other files of the directory were not judged, by the names of the files."""

    @property
    def exit_code(self) -> int:
        """3 if the machine prevented a verdict, 2 if a problem cannot be judged, else 0."""
        found = {verdict.status for verdict in self.verdicts}
        return 3 if Status.INFRA_ERROR in found else 2 if Status.UNJUDGEABLE in found else 0

    def to_json(self) -> Any:
        """The verdict of one file; for a directory, a list, each with its candidate and problem.
        Files that were not judged come last: without a problem, their status null."""
        if not self.request.is_directory:
            return self._verdict_json(self.verdicts[0])
        judged = [
            {
                "candidate": job.name,
                "problem": job.problem.problem_id,
                **self._verdict_json(verdict),
            }
            for job, verdict in zip(self.jobs, self.verdicts, strict=True)
        ]
        return judged + [
            {"candidate": name, "problem": None, "status": None, "detail": reason}
            for name, reason in self.skipped.items()
        ]

    def _verdict_json(self, verdict: Verdict) -> dict[str, Any]:
        """The verdict; with `--explain`, also its program as text."""
        if not self.request.is_explained:
            return verdict.to_json()
        return {**verdict.to_json(), "explained": explain_packed(verdict.program)}

    def render(self) -> RenderableType:
        if self.request.is_directory:
            return render_verdicts(self.jobs, self.verdicts, skipped=self.skipped)
        job, verdict = self.jobs[0], self.verdicts[0]
        return render_verdict(verdict, job=job, request=self.request)


def judge(request: JudgingRequest, settings: JudgeSettings) -> Judged:
    """Judges all candidates. Raises ConfigError: a file or option that cannot be used;
    MachineError: no sandbox works on this machine."""
    table, gpus = settings.table(), settings.gpus()
    jobs, skipped = read_jobs(request)
    found = ((index, _refused(job, is_here=not settings.url)) for index, job in enumerate(jobs))
    refused = {index: verdict for index, verdict in found if verdict is not None}
    others = [job for index, job in enumerate(jobs) if index not in refused]
    most = min(settings.workers or MAX_JUDGES, len(others))
    judged: list[Verdict] = []
    if others:
        table = table.model_copy(update={"workers": min(table.workers, most)})
        judged = anyio.run(_judge_all, others, table, gpus[:most], request)
    rest = iter(judged)
    verdicts = [refused[i] if i in refused else next(rest) for i in range(len(jobs))]
    return Judged(jobs=jobs, verdicts=verdicts, request=request, skipped=skipped)


def _refused(job: JudgeJob, *, is_here: bool) -> Verdict | None:
    """The verdict on a candidate that no judge needs to see."""
    if job.reason is not Reason.OK:
        return replace(verdict_without_code(job.problem, job.reason), isolation=NOT_RUN)
    return refuse(job.problem, job.code) if is_here else None


async def _judge_all(
    jobs: Sequence[JudgeJob], table: JudgeTable, gpus: Sequence[Gpu], request: JudgingRequest
) -> list[Verdict]:
    verdicts: dict[int, Verdict] = {}
    async with (
        open_counter("judged", total=len(jobs), is_shown=request.is_directory) as advance,
        open_private_pool(table, gpus=gpus) as pool,
        anyio.create_task_group() as tasks,
    ):

        async def judge_one(index: int, job: JudgeJob) -> None:
            verdicts[index] = await pool.judge(
                job.problem, job.code, timing=request.is_timed, profile=request.is_profiled,
                program=request.is_explained,
            )  # fmt: skip
            advance(verdicts[index].status)

        for index, job in enumerate(jobs):
            tasks.start_soon(judge_one, index, job)
    return [verdicts[index] for index in range(len(jobs))]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingRequest:
    """Arguments and options of `forge judge`, whose help describes them."""

    problem: Path
    chosen: str | None = None
    format: RowFormat = "kernelbench"
    candidate: str
    overrides: Overrides = field(default_factory=Overrides)
    shapes: Sequence[Overrides] = ()
    precision: str = "fp32"
    is_timed: bool = True
    is_profiled: bool = False
    is_explained: bool = False

    @property
    def is_directory(self) -> bool:
        return Path(self.candidate).is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeJob:
    name: str
    """Name of the candidate: its path below the given directory, its file name, or `stdin`."""
    problem: Problem
    code: str
    """Code in the text if it is a model's answer, else the text itself; empty without code."""
    reason: Reason = Reason.OK


def require_sources(problem: Path | None, candidate: str | None) -> tuple[Path, str]:
    """The arguments of the command line. Raises ConfigError if one is missing or does not exist."""
    if problem is None or candidate is None:
        missing = "PROBLEM and CANDIDATE" if problem is None else "CANDIDATE"
        raise ConfigError(f"forge judge: no {missing}; give both, or --serve")
    if not candidate:
        raise ConfigError("forge judge: CANDIDATE is empty; a file, a directory or - is needed")
    require_path(problem)
    if candidate != STDIN:
        require_path(Path(candidate))
    return problem, candidate


def read_jobs(request: JudgingRequest) -> tuple[list[JudgeJob], dict[str, str]]:
    """All candidates with their problems, in the order of their names, and the reasons why other
    files are not judged, by name. Raises ConfigError if none can be judged."""
    asked, candidate = request.problem, request.candidate
    root = None if candidate == STDIN else Path(candidate)
    if holds_several(asked) and root is None and request.chosen is None:
        what = "a directory" if asked.is_dir() else "a file of rows"
        raise ConfigError(
            f"{asked}: {what}; a candidate on stdin needs one problem file, or --problem"
        )
    paths: dict[str, Path | None] = {"stdin": None} if root is None else {root.name: root}
    if root is not None and root.is_dir():
        paths = {p.relative_to(root).as_posix(): p for p in find_files(root, include=())}
        if not paths:
            raise ConfigError(f"{root}: no *.py in it; expected a directory of candidates")
    answered = KnownProblems(asked, chosen=request.chosen, format=request.format)
    judged: list[JudgeJob] = []
    skipped: dict[str, str] = {}
    for name, path in paths.items():
        try:
            file = answered.file(name)
            code = read_source(STDIN if path is None else str(path))
        except ConfigError as error:
            skipped[name] = str(error)
            continue
        problem = answered.problem(
            file, overrides=request.overrides, shapes=request.shapes, precision=request.precision
        )
        judged.append(_job(name, problem, code))
    if skipped and not judged:
        raise ConfigError("\n".join(skipped.values()))
    answered.check(request.overrides, request.shapes)
    return judged, skipped


def _job(name: str, problem: Problem, text: str) -> JudgeJob:
    """A candidate: the code in a text. A Python file without an answer in it is code."""
    found = find_code(text, entry_point=problem.entry_point)
    if found.is_ok or name.endswith(".py"):
        return JudgeJob(name=name, problem=problem, code=found.code or text)
    return JudgeJob(name=name, problem=problem, code="", reason=found.reason)


def require_path(path: Path) -> None:
    """Raises ConfigError if the path does not exist or is not accessible."""
    try:
        path.stat()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{str(path)[:MAX_NAME]}: {reason}") from error


_ASSIGNMENT = re.compile(r"\s*(?:([^=]+):)?\s*([^\W\d]\w*)\s*=(.*)", re.DOTALL)
OPTION = "--shape"
_PROBLEM = re.compile(r"([^=]+:)?(.*)", re.DOTALL)
_NEXT = re.compile(r",(?=(?:[^=,]+:)?\s*[^\W\d]\w*\s*=)")
"""A comma before the next name, or problem and name; a comma in a value does not separate."""


def parse_overrides(items: Iterable[str], *, option: str = "--override") -> Overrides:
    """Values from `batch_size=16`, `use_bias=true`, `3_matmul:N=512`, `@sizes.toml`; later ones
    replace earlier ones. Raises ConfigError: one line for each malformed item, which begins with
    `option`."""
    everywhere: dict[str, Constant] = {}
    by_problem: dict[str, dict[str, Constant]] = {}
    mistakes: list[str] = []
    for item in items:
        place = f"{option} {item}"
        try:
            found = checked_constants(_table_of(item, place), prefix=f"{place}: ")
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        for name, value in found.items():
            if isinstance(value, dict):
                by_problem.setdefault(name, {}).update(value)
            else:
                everywhere[name] = value
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return Overrides(everywhere=everywhere, by_problem=by_problem)


def _table_of(item: str, place: str) -> dict[str, Any]:
    """The values of an item, as a file has them."""
    if item.startswith("@"):
        try:
            return tomllib.loads(read_source(item[1:]))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{place}: {error}") from error
    match = _ASSIGNMENT.fullmatch(item)
    if match is None:
        raise ConfigError(f"{place}: a name and a value, such as batch_size=16 or 3_matmul:N=512")
    text = match[3].strip()
    value: Any = text
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = ast.literal_eval(text.title() if text in ("true", "false") else text)
    is_fit = math.isfinite(value) if isinstance(value, float) else isinstance(value, int | str)
    if not is_fit:
        raise ConfigError(f"{place}: found {value!r}; a number, true, false or a string")
    values = {match[2]: value}
    return values if match[1] is None else {match[1].strip(): values}


def parse_shapes(items: Sequence[str]) -> tuple[Overrides, ...]:
    """Shapes from `N=1024`, `N=4096,M=100`, `3_matmul:N=512`, `@sizes.toml`. Raises ConfigError:
    one line for each shape that cannot be used."""
    shapes = tuple(parse_overrides(_assignments(item), option=OPTION) for item in items)
    tables = [{**shape.everywhere, **shape.by_problem} for shape in shapes]
    found = list(find_shape_mistakes(tables)) if items else []
    if found:
        lines = [
            f"{OPTION}{'' if index is None else f' {items[index]}'}: {text}"
            for index, text in found
        ]
        raise ConfigError("\n".join(lines))
    return shapes


def _assignments(item: str) -> list[str]:
    """`3_matmul:N=512,M=3` as `3_matmul:N=512` and `3_matmul:M=3`: a problem holds for the names
    up to the next problem."""
    if item.startswith("@"):
        return [item]
    problem, found = "", list[str]()
    for part in _NEXT.split(item):
        match = _PROBLEM.fullmatch(part)
        assert match is not None, part
        problem = match[1] or problem
        found.append(f"{problem}{match[2]}")
    return found


CONTEXT_LINES = 3
MAX_LINE = 160
MAX_KERNELS = 20
STYLES = {Status.CORRECT: "green", Status.UNJUDGEABLE: "yellow", Status.INFRA_ERROR: "yellow"}
MAX_SHORT_DETAIL = 120
NO_PROGRAM = "no program: the candidate failed before one was captured, or it is too large"
NO_RESULTS = "gave no results within"
"""Part of the detail of a reference that took too long."""
WEAK = {"none": ": the candidate could reach files, sockets and other processes"}


def render_verdict(verdict: Verdict, *, job: JudgeJob, request: JudgingRequest) -> RenderableType:
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
            why = "not requested" if not request.is_timed else "judge.timing is off there"
            yield Text(f"not timed: {'a CPU has no GPU time' if verdict.device == 'cpu' else why}")
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
    share = timing.roofline_share
    rates = {
        "{:.4g} GB/s": timing.achieved_gbps, "{:.4g} TFLOP/s": timing.achieved_tflops,
        "{} of the roofline": None if share is None else percent(share),
    }  # fmt: skip
    if shown := [form.format(rate) for form, rate in rates.items() if rate is not None]:
        yield Text(", ".join(shown))


def _profile(verdict: Verdict) -> Iterator[RenderableType]:
    yield Text("")
    profile = verdict.profile
    if profile is None or not (profile.kernels or profile.launches):
        yield Text("profile: no kernels; none was captured")
        return
    if profile.kernels:
        yield _kernel_table(profile.kernels)
    if profile.launches:
        yield from (Text(printable(line)) for line in describe_profile(verdict).splitlines())


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
    own = verdict.own_share
    share = "" if own is None else f", own share of the work {percent(own)}"
    yield f"{launches(verdict.num_launches)} a call{share}; on {verdict.device}"
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


def render_verdicts(
    jobs: Sequence[JudgeJob], verdicts: Sequence[Verdict], *, skipped: Mapping[str, str]
) -> Group:
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
        detail = printable(" | ".join(verdict.detail.split("\n")))
        is_long = len(detail) > MAX_SHORT_DETAIL
        table.add_row(*cells, Text(f"{detail[: MAX_SHORT_DETAIL - 1]}…" if is_long else detail))
    rules = {verdict.rules for verdict in verdicts} - {"", "forge"}
    head = f"by {rules_in_words(*rules)}: " if len(rules) == 1 else ""
    parts = [table, Text(""), Text(f"{head}{summary(verdicts)}")]
    for name in also:
        found = [verdict.also[name] for verdict in verdicts if name in verdict.also]
        parts.append(Text(f"by {rules_in_words(name)}: {summary(found)}"))
    if skipped:
        parts += [Text(""), Text(f"{count(len(skipped), 'file')} not judged:", style="yellow")]
        parts += [Text(printable(reason)) for reason in skipped.values()]
    return Group(*parts)


def _other(verdict: OtherVerdict | None) -> Text:
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
    return f"{count(len(verdicts), 'candidate')}: {listed}"


MAX_SHAPES = 3


def check_path(
    path: Path,
    *,
    settings: JudgeSettings,
    overrides: Overrides,
    shapes: Sequence[Overrides] = (),
    precision: str,
    chosen: str | None = None,
    row_format: RowFormat = "kernelbench",
) -> list[Examination]:
    """Examines each problem below `path` or in its rows, in the order of their names. Raises
    ConfigError: a path or option that cannot be used; MachineError: no sandbox works on this
    machine. `chosen`: name of the only problem to examine. `row_format`: columns of a file of rows.
    """
    table, gpus = settings.table(), settings.gpus()
    require_path(path)
    known = KnownProblems(path, chosen=chosen, format=row_format)
    if not known.names:
        raise ConfigError(f"{path}: no *.py in it; expected a directory of problem files")
    files: list[ProblemFile] = []
    done: list[Examination] = []
    for name in known.names:
        try:
            files.append(known.file(name))
        except ConfigError as error:
            place = str(path / name if path.is_dir() else path)
            flags = {Flag.DOES_NOT_RUN: str(error).removeprefix(place).lstrip(":").strip()}
            done.append(Examination(problem_id=name.removesuffix(".py"), flags=flags))
    known.check(overrides, shapes)
    problems = [
        known.problem(file, overrides=overrides, shapes=shapes, precision=precision)
        for file in files
    ]
    if problems:
        done += anyio.run(_check, problems, table, gpus)
    return sorted(done, key=lambda each: _natural(each.problem_id))


async def _check(
    problems: Sequence[Problem], table: JudgeTable, gpus: Sequence[Gpu]
) -> list[Examination]:
    most = max(1, len(problems) // 2)  # a judge's start takes as long as several examinations
    num_judges = min(len(gpus) or table.workers, MAX_JUDGES, most)
    several = table.model_copy(update={"workers": num_judges})
    async with (
        open_counter("examined", total=len(problems)) as advance,
        open_private_pool(several, gpus=gpus[:num_judges]) as pool,
    ):
        return await examine_all(pool, problems, done=advance)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key in which `level1/2_x` comes before `level1/10_x`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def render_examined(examinations: Sequence[Examination]) -> Group:
    """One line per problem, and a summary. Control characters from problem files are escaped."""
    names = ("problem", "outputs", "forward", "flags", "what it means")
    table = Table(*names, box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for each in examinations:
        table.add_row(
            Text(printable(each.problem_id)),
            Text(printable(_shapes_of(each))),
            Text("" if each.forward_s is None else _seconds(each.forward_s)),
            Text(next(iter(each.flags), "ok"), style=_style(each)),
            Text(printable(next(iter(each.flags.values()), ""))),
        )
        for flag, reason in list(each.flags.items())[1:]:
            table.add_row("", "", "", Text(flag, style=_style(each)), Text(printable(reason)))
    return Group(table, Text(""), Text(examined(examinations)))


def examined(examinations: Sequence[Examination]) -> str:
    """`100 problems: 81 can be trained on, 12 …, 7 unjudgeable (5 does_not_run, 2 slow)`."""
    num_usable = sum(each.is_usable for each in examinations)
    num_trainable = sum(each.is_trainable for each in examinations)
    num_unchecked = sum(each.num_unchecked > 0 for each in examinations)
    text = f"{count(len(examinations), 'problem')}: {num_trainable} can be trained on"
    if num_trivial := num_usable - num_trainable:
        text += f", {num_trivial} would reward an answer that does less than asked"
    if reasons := unjudgeable_flags(examinations):
        listed = ", ".join(f"{count} {flag}" for flag, count in reasons.items())
        text += f", {len(examinations) - num_usable} unjudgeable ({listed})"
    if num_unchecked:
        text += f"; {num_unchecked} not fully checked, for lack of time"
    return text


def unjudgeable_flags(examinations: Sequence[Examination]) -> dict[str, int]:
    """Number of problems that cannot be judged, by their first such flag; the largest first."""
    firsts = [
        next(str(flag) for flag in each.flags if flag.is_unusable)
        for each in examinations
        if not each.is_usable
    ]
    return dict(Counter(firsts).most_common())


def examined_json(examinations: Sequence[Examination]) -> dict[str, Any]:
    return {
        "num_problems": len(examinations),
        "num_usable": sum(each.is_usable for each in examinations),
        "unjudgeable": unjudgeable_flags(examinations),
        "num_trainable": sum(each.is_trainable for each in examinations),
        "problems": [each.to_json() for each in examinations],
    }


def _shapes_of(each: Examination) -> str:
    more = len(each.outputs) - MAX_SHAPES
    shapes = "\n".join(each.outputs[:MAX_SHAPES])
    return f"{shapes}\nand {more} more" if more > 0 else shapes


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _style(each: Examination) -> str:
    if not each.flags:
        return "green"
    return "yellow" if each.is_usable else "red"
