"""Finds the rows of `data.path` and of problem sources: a path as it is, a hub name downloaded.

Called before a run is planned, so that problems are loaded and checked before it has a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.schema.problems import is_hub_name
from forge.errors import ConfigError
from forge.runner.prepare.hub import fetch_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forge.config.schema import Experiment

PATTERNS = (("*.parquet",), ("*.jsonl", "*.json"))
"""Files of a data set, the preferred kind first: many repositories have the same rows in both."""


def locate_rows(experiment: Experiment, *, say: Callable[[str], None] | None = None) -> Experiment:
    """The experiment with hub names of data sets replaced by directories in the local cache.

    Raises:
        ConfigError: no such data set, or no rows in it.
        MachineError: the network or the disk failed.
    """
    data, problems = experiment.data, experiment.problems
    if data.source == "file" and data.path is not None:
        data = data.model_copy(update={"path": _locate(data.path, key="data.path", say=say)})
    if problems.sources is None and problems.source == "file" and problems.path is not None:
        path = _locate(problems.path, key="problems.path", say=say)
        problems = problems.model_copy(update={"path": path})
    elif problems.sources is not None:
        parts = [
            part
            if part.source != "file" or part.path is None
            else part.model_copy(
                update={"path": _locate(part.path, key=f"{problems.key_of(index)}path", say=say)}
            )
            for index, part in enumerate(problems.sources)
        ]
        problems = problems.model_copy(update={"sources": parts})
    return experiment.model_copy(update={"data": data, "problems": problems})


def _locate(path: Path, *, key: str, say: Callable[[str], None] | None) -> Path:
    name = str(path)
    if path.exists() or not is_hub_name(name):
        return path
    for patterns in PATTERNS:
        found = fetch_snapshot(name, key=key, kind="dataset", patterns=patterns, say=say)
        if any(file for pattern in patterns for file in found.rglob(pattern)):
            return found
    raise ConfigError(f"{key}: {name}: a data set without Parquet and JSON files")
