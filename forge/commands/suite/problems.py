"""The problems of a suite, as the tables of an experiment.

kernelbench-l1 ... kernelbench-l4   a level of a checkout of KernelBench in the working directory
DIR                                 every problem file below it
X.toml                              the held-out problems of an experiment, its judge and prompts
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge.config.load import load_experiment
from forge.data.directory import find_files
from forge.errors import ConfigError

NAMED = re.compile(r"kernelbench-l([1-4])")
CHECKOUTS = (Path("KernelBench/KernelBench"), Path("KernelBench"), Path())
"""Folders that may have `level1`, relative to the working directory."""
CLONE = "git clone https://github.com/ScalingIntelligence/KernelBench"
TABLES = ("problems", "judge", "prompt")
"""Tables of an experiment that a suite of its problems has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Problems to evaluate on."""

    name: str
    """Name in results."""
    tables: dict[str, Any] = field(default_factory=dict[str, Any])
    """Tables that replace those of the experiment."""
    seed: int | None = None
    """Seed that generates the problems; None if none are generated."""


def find_suite(text: str) -> Suite:
    """The suite of a name, a directory or an experiment file. Raises ConfigError if there is none,
    or no problem in it."""
    if found := NAMED.fullmatch(text):
        return _directory(_checkout(text, level=int(found[1])), name=text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _directory(path, name=path.resolve().name)
    if path.suffix == ".toml" and path.is_file():
        experiment = load_experiment(path, is_here=False)
        values = experiment.model_dump(mode="json", exclude_none=True)
        tables = {name: values[name] for name in TABLES}
        return Suite(name=experiment.name, tables=tables, seed=experiment.seed)
    raise ConfigError(
        f"--suite {text}: no such suite; kernelbench-l1 to kernelbench-l4, a directory of "
        "problems, or an experiment file"
    )


def _checkout(name: str, *, level: int) -> Path:
    for folder in CHECKOUTS:
        path = folder / f"level{level}"
        if path.is_dir():
            return path
    raise ConfigError(
        f"--suite {name}: found no KernelBench/KernelBench/level{level} in {Path.cwd()}; {CLONE}"
    )


def _directory(path: Path, *, name: str) -> Suite:
    """All files below a directory, every one held out. Ids are relative to its parent for a level,
    as in `level1/19_ReLU`."""
    path = path.resolve()
    is_level = re.fullmatch(r"level\d+", path.name) is not None
    root, include = (path.parent, [f"{path.name}/*.py"]) if is_level else (path, [])
    files = find_files(root, include=include)
    if not files:
        raise ConfigError(
            f"--suite {path}: found no *.py below it; problems in KernelBench's layout"
        )
    problems = {
        "source": "dir",
        "path": str(root),
        "include": include,
        "num_heldout": len(files),
    }
    return Suite(name=name, tables={"problems": problems})
