"""Checks of `[problems]` and `[data]`: keys of the wrong source, files that do not exist."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forge.config.checks.mistake import absent, mistake
from forge.config.schema.problems import ProblemsTable, find_shape_mistakes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake
    from forge.config.schema import Experiment


def check_problems(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that belong to the chosen source of problems, and files that exist."""
    if experiment.problems.source == "generated":
        yield from _check_generated(experiment)
    else:
        yield from _check_directory(experiment)


def _check_generated(experiment: Experiment) -> Iterator[Mistake]:
    problems = experiment.problems
    if problems.path:
        yield mistake('found a path; allowed with source = "dir" only', "problems", "path")
    if problems.shapes is not None:
        yield mistake('found shapes; allowed with source = "dir" only', "problems", "shapes")
    if problems.sizes == "gpu" and not experiment.devices.judge and not experiment.judge.url:
        yield mistake(
            'found "gpu" with judges on the CPU; "small", or set devices.judge and devices.gpus',
            *("problems", "sizes"),
        )
    if problems.num_heldout >= problems.num_problems:
        text = f"found {problems.num_heldout}; fewer than num_problems = {problems.num_problems}"
        yield mistake(text, "problems", "num_heldout")


def _check_directory(experiment: Experiment) -> Iterator[Mistake]:
    problems = experiment.problems
    if experiment.model.init:
        yield mistake(
            'found "dir" with model.init, whose tokenizer learns from answers, and "dir" has none; '
            "start from model.path",
            *("problems", "source"),
        )
    if not problems.path:
        text = 'found source = "dir" without path; set path to the directory of the problems'
        yield mistake(text, "problems", "source")
    elif not problems.path.is_dir():
        yield absent(f'found "{problems.path}", which is not a directory', "problems", "path")
    elif not any(problems.path.rglob("*.py")):
        yield absent(f'found "{problems.path}", which has no *.py files', "problems", "path")
    if problems.shapes is not None:
        for index, text in find_shape_mistakes(problems.shapes):
            yield mistake(text, "problems", "shapes", *(() if index is None else (index,)))
    if problems.sizes != "small":
        yield mistake(
            f'found "{problems.sizes}"; allowed with source = "generated" only: problem files '
            "contain their sizes, and problems.overrides changes them",
            *("problems", "sizes"),
        )
    defaults = ProblemsTable()
    for name in ("families", "dtypes"):
        if (found := getattr(problems, name)) != getattr(defaults, name):
            text = f'found {json.dumps(found)}; allowed with source = "generated" only'
            yield mistake(text, "problems", name)


def check_data(experiment: Experiment) -> Iterator[Mistake]:
    """A file of SFT rows exactly if the source is a file."""
    data = experiment.data
    if data.source == "generated":
        if data.path:
            yield mistake('found a path; allowed with source = "file" only', "data", "path")
    elif not data.path:
        yield mistake('found source = "file" without path; set path to the rows', "data", "source")
    elif not data.path.exists():
        yield absent(f'found "{data.path}", which does not exist; a file of rows', "data", "path")
