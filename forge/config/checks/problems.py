"""Checks of `[problems]` and `[data]`: keys of the wrong source, files that do not exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.checks.mistake import absent, mistake
from forge.config.schema.problems import (
    SHARED,
    DataSourceTable,
    ProblemsTable,
    SourceTable,
    find_shape_mistakes,
    is_hub_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.checks.mistake import Mistake
    from forge.config.schema import DataTable, Experiment, KeyPath, ProblemSource
    from forge.config.schema.base import Table


CLONE = "git clone https://github.com/ScalingIntelligence/KernelBench"
"""Command that makes a missing directory of KernelBench."""


def check_problems(experiment: Experiment) -> Iterator[Mistake]:
    """Keys that belong to the chosen sources of problems, and files that exist."""
    problems = experiment.problems
    yield from _check_single_keys("problems", problems, SourceTable)
    for index, part in enumerate(problems.parts()):
        at: KeyPath = ("problems",) if problems.sources is None else ("problems", "sources", index)
        if part.source == "generated":
            yield from _check_generated(part, at)
        else:
            yield from _check_files(part, at)
    if problems.has_generated:
        yield from _check_generator(experiment)
    else:
        yield from _check_no_generator(problems)
    if experiment.model.init and not problems.has_generated and not experiment.data.has_files:
        yield mistake(
            "found no generated problems with model.init, whose tokenizer learns from answers; "
            'set data.source = "file" for rows of a file, or start from model.path',
            *("problems", "source"),
        )
    yield from _check_levels(problems)
    yield from _check_sharing(problems)


def _check_single_keys(
    name: str, table: ProblemsTable | DataTable, single: type[Table]
) -> Iterator[Mistake]:
    """With several sources, no keys of a single one, and the generator once."""
    if table.sources is None:
        return
    for key, field in single.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        if getattr(table, key) != default:
            yield mistake(f"set together with {name}.sources; set it in each of them", name, key)
    kinds = [part.source for part in table.sources]
    for index, kind in enumerate(kinds):
        if kind == "generated" and kind in kinds[:index]:
            text = 'found "generated" a second time; one of all sources'
            yield mistake(text, name, "sources", index, "source")


def _check_generated(part: ProblemSource, at: KeyPath) -> Iterator[Mistake]:
    for name in ("path", "shapes"):
        if getattr(part, name) is not None:
            text = f'found {"a path" if name == "path" else name}; allowed with source = "dir"'
            yield mistake(f'{text} or "file" only', *at, name)


def _check_generator(experiment: Experiment) -> Iterator[Mistake]:
    problems = experiment.problems
    cluster = experiment.cluster
    is_elsewhere = experiment.judge.url or (cluster.judges and cluster.judge_on == "gpu")
    if problems.sizes == "gpu" and not experiment.devices.judge and not is_elsewhere:
        yield mistake(
            'found "gpu" with judges on the CPU; "small", or set devices.judge and devices.gpus',
            *("problems", "sizes"),
        )
    if problems.num_reserved >= problems.num_problems:
        text = f"found {problems.num_reserved}; fewer than num_problems = {problems.num_problems}"
        yield mistake(text, "problems", "num_heldout")


def _check_no_generator(problems: ProblemsTable) -> Iterator[Mistake]:
    if problems.sizes != "small":
        yield mistake(
            f'found "{problems.sizes}"; allowed with source = "generated" only: problem files '
            "contain their sizes, and problems.overrides changes them",
            *("problems", "sizes"),
        )
    if problems.dtypes != ProblemsTable().dtypes:
        text = f'found {json.dumps(problems.dtypes)}; allowed with source = "generated" only'
        yield mistake(text, "problems", "dtypes")


def _check_files(part: ProblemSource, at: KeyPath) -> Iterator[Mistake]:
    path = part.path
    if not path:
        what = "the directory of the problems" if part.source == "dir" else "the rows"
        yield mistake(
            f'found source = "{part.source}" without path; set path to {what}', *at, "source"
        )
    elif part.source == "dir" and not path.is_dir():
        text = f'found "{path}", which is not a directory{_how_to_clone(path)}'
        yield absent(text, *at, "path")
    elif part.source == "dir" and not any(path.rglob("*.py")):
        yield absent(f'found "{path}", which has no *.py files', *at, "path")
    elif part.source == "file":
        yield from check_rows(path, *at, "path")
    if part.shapes is not None:
        for index, text in find_shape_mistakes(part.shapes):
            yield mistake(text, *at, "shapes", *(() if index is None else (index,)))


def _check_sharing(problems: ProblemsTable) -> Iterator[Mistake]:
    """Sharing is chosen only where nothing else holds problems out."""
    holds_out = {
        "generated problems, some of which are held out": problems.has_generated,
        "heldout_levels, which hold problems out": problems.heldout_levels is not None,
        'use = "heldout", which holds problems out': any(
            part.use == "heldout" for part in problems.parts()
        ),
    }
    for text in (text for text, does in holds_out.items() if does):
        if problems.num_heldout == SHARED:
            yield mistake(f'found "shared" with {text}; a number', "problems", "num_heldout")
            return


def _check_levels(problems: ProblemsTable) -> Iterator[Mistake]:
    both = sorted(set(problems.train_levels or ()) & set(problems.heldout_levels or ()))
    if both:
        text = f"found {both[0]}, which is in train_levels too; each level in one of them"
        yield mistake(text, "problems", "heldout_levels")
    for name in ("train_levels", "heldout_levels"):
        if getattr(problems, name) is not None and not problems.has_others:
            text = 'set with generated problems only; it divides those of source = "dir" or "file"'
            yield mistake(text, "problems", name)


def check_rows(path: Path, *at: str | int) -> Iterator[Mistake]:
    """A file or directory that exists, or the name of a data set on the hub."""
    if not path.exists() and not is_hub_name(str(path)):
        text = f'found "{path}", which does not exist; a file of rows, a directory or a hub name'
        settings = path.parent.with_suffix(".toml")
        is_built = path.suffix and settings.is_file()
        yield absent(f"{text}; `forge data build {settings}` writes it" if is_built else text, *at)


def _how_to_clone(path: Path) -> str:
    """Command that fetches KernelBench to where it is expected; empty for any other directory."""
    names = [part.lower() for part in path.parts]
    if "kernelbench" not in names:
        return ""
    return f"; {CLONE} {Path(*path.parts[: names.index('kernelbench') + 1])}"


def check_data(experiment: Experiment) -> Iterator[Mistake]:
    """A file of SFT rows exactly if a source is a file, and each file once."""
    data = experiment.data
    yield from _check_single_keys("data", data, DataSourceTable)
    paths: list[Path] = []
    for index, part in enumerate(data.parts()):
        at: KeyPath = ("data",) if data.sources is None else ("data", "sources", index)
        if part.source == "generated":
            if part.path:
                yield mistake('found a path; allowed with source = "file" only', *at, "path")
        elif not part.path:
            yield mistake('found source = "file" without path; set path to the rows', *at, "source")
        elif part.path in paths:
            text = f'found "{part.path}" a second time; one source, with both weights'
            yield mistake(text, *at, "path")
        else:
            paths.append(part.path)
            yield from check_rows(part.path, *at, "path")
