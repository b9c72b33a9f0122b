"""`forge judge PROBLEM CANDIDATE`: one verdict for one file, by a judge started for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from forge.config.schema import JudgeTable
from forge.data.problems import load_problem
from forge.errors import ConfigError
from forge.evalpool.pool import judge_alone
from forge.process.logtail import clean

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge.records import Verdict


def make_table(*, device: str, isolation: str) -> JudgeTable:
    """Settings of the command line. Raises ConfigError for what is not allowed."""
    levels = ("auto", "namespaces", "none")
    if isolation not in levels:
        raise ConfigError(f"--isolation {isolation}: one of {', '.join(levels)}")
    if device != "cpu":
        raise ConfigError(f"--device {device}: judges run on cpu here")
    return JudgeTable.model_validate({"workers": 1, "isolation": isolation})


def judge_files(problem: Path, candidate: Path, *, table: JudgeTable) -> Verdict:
    """The same judge as in a run. Raises ConfigError for a file that cannot be used."""
    loaded = load_problem(problem)
    try:
        text = candidate.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{candidate}: cannot be read: {error}") from error
    return anyio.run(lambda: judge_alone(loaded, text, table=table))


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """For people. Texts come from a candidate, so control characters are dropped."""
    yield f"{verdict.status} ({verdict.reason}) on {verdict.device}, isolation {verdict.isolation}"
    yield from (clean(line) for line in verdict.detail.splitlines())
    if verdict.timing is not None:
        yield f"speedup {verdict.timing.speedup:.2f} (at least {verdict.timing.speedup_low:.2f})"
    phases = ", ".join(f"{name} {value:.2f}" for name, value in verdict.phase_s.items())
    yield f"{verdict.num_launches} launches; seconds: {phases or 'none'}"
