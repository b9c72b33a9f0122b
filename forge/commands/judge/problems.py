"""`forge problems check`: examines all problem files of a directory; output as a table or JSON.

Judges examine each problem in its own sandbox; this process imports none of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.adapters.pools import MAX_JUDGES, JudgeSettings
from forge.adapters.subjects import KnownProblems
from forge.commands.counter import open_counter
from forge.commands.judge.judge import require_path
from forge.config.schema import JudgeTable, RowFormat
from forge.data.problem_files import Overrides, ProblemFile
from forge.errors import ConfigError
from forge.evalpool.pool import examine_all, open_private_pool
from forge.process.devices import Gpu
from forge.records import Problem
from forge.records.examination import Examination, Flag
from forge.views.text import count, printable

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
    num_judges = min(len(gpus) or table.workers, MAX_JUDGES, len(problems))
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


def render(examinations: Sequence[Examination]) -> Group:
    """One line per problem, and a summary. Control characters from problem files are escaped."""
    names = ("problem", "outputs", "forward", "flags", "what it means")
    table = Table(*names, box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for each in examinations:
        table.add_row(
            Text(printable(each.problem_id)),
            Text(printable(_shapes(each))),
            Text("" if each.forward_s is None else _seconds(each.forward_s)),
            Text(next(iter(each.flags), "ok"), style=_style(each)),
            Text(printable(next(iter(each.flags.values()), ""))),
        )
        for flag, reason in list(each.flags.items())[1:]:
            table.add_row("", "", "", Text(flag, style=_style(each)), Text(printable(reason)))
    return Group(table, Text(""), Text(summary(examinations)))


def summary(examinations: Sequence[Examination]) -> str:
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


def to_json(examinations: Sequence[Examination]) -> dict[str, Any]:
    return {
        "num_problems": len(examinations),
        "num_usable": sum(each.is_usable for each in examinations),
        "unjudgeable": unjudgeable_flags(examinations),
        "num_trainable": sum(each.is_trainable for each in examinations),
        "problems": [each.to_json() for each in examinations],
    }


def _shapes(each: Examination) -> str:
    more = len(each.outputs) - MAX_SHAPES
    shapes = "\n".join(each.outputs[:MAX_SHAPES])
    return f"{shapes}\nand {more} more" if more > 0 else shapes


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _style(each: Examination) -> str:
    if not each.flags:
        return "green"
    return "yellow" if each.is_usable else "red"
