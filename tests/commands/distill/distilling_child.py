"""Runs a distillation with a slow fake judge until it is killed: URL, problems and directory are
arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.commands.distill import DistillRequest, adistill
from forge.serve.remote.teacher import TeacherSettings
from tests.commands.distill.teaching import WordJudge

if TYPE_CHECKING:
    from forge.records import Problem, Verdict


class SlowJudge(WordJudge):
    """A judge that takes 10 ms."""

    async def __call__(self, problem: Problem, code: str) -> Verdict:
        await anyio.sleep(0.01)
        return await super().__call__(problem, code)


async def main() -> None:
    """Distill."""
    url, problems, out = sys.argv[1:]
    request = DistillRequest(
        problems=Path(problems), out=Path(out), teacher=TeacherSettings(url=url), concurrency=3
    )
    await adistill(request, say=lambda _text: None, judge=SlowJudge())


anyio.run(main)
