"""Loads an experiment: reads the file, `extends` and `--set`, and returns a checked `Experiment`;
writes a resolved one, the `experiment.toml` of a run.

Called by every command that takes an experiment file, and by resume with the run's resolved file.
Paths of inputs (model, problems, rows, adapter, interpreter, prompts) are relative to the file that
contains them, or to the working directory if only that has them, or for `--set`. They become
absolute, so that a resolved experiment means the same from any directory; `store.dir` stays
relative.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
from pydantic import ValidationError

from forge.config.checks.check import check
from forge.config.mistakes import found_mistakes, without
from forge.config.schema import Experiment, dotted
from forge.config.sources import Sources, read_sources
from forge.errors import ConfigError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from forge.config.checks.mistake import Mistake
    from forge.config.schema import TomlTable

PATH_KEYS = (
    ("problems", "path"),
    ("data", "path"),
    ("model", "adapter"),
    ("serve", "python"),
    ("model", "path"),
    ("prompt", "system"),
    ("prompt", "first"),
    ("prompt", "feedback"),
    ("prompt", "example"),
)


def load_experiment(
    path: Path | str, *, overrides: Sequence[str] = (), is_here: bool = True
) -> Experiment:
    """Reads and checks an experiment.

    Args:
        path: the TOML file.
        overrides: arguments of `--set`, `table.key=value`; later ones override earlier ones.
        is_here: True if it will run on this machine, so the files that it names must exist.

    Raises:
        ConfigError: the experiment has mistakes; one line for each, in the order of the file.
    """
    sources = read_sources(Path(path), overrides=overrides)
    _make_absolute(sources)
    experiment, mistakes = _validate(sources.values)
    if experiment is not None:
        mistakes += check(
            experiment, mistaken={mistake.path for mistake in mistakes}, is_here=is_here
        )
    lines = [
        line_of(mistake, sources) for mistake in sorted(mistakes, key=partial(place_of, sources))
    ]
    lines += sources.mistakes
    if lines or experiment is None:
        raise ConfigError("\n".join(lines))
    return experiment


def dump_experiment(experiment: Experiment, *, comment: str = "") -> str:
    """The whole experiment with its defaults, under a comment; absent keys stay absent.

    `load_experiment` reads the text to an equal value.
    """
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))


def _validate(values: TomlTable) -> tuple[Experiment | None, list[Mistake]]:
    """The experiment, if possible with defaults in place of mistakes, and the mistakes."""
    try:
        return Experiment.model_validate(values), []
    except ValidationError as error:
        mistakes = found_mistakes(error, values)
    try:
        return Experiment.model_validate(without(values, mistakes)), mistakes
    except ValidationError:
        return None, mistakes


def _make_absolute(sources: Sources) -> None:
    for table, key in PATH_KEYS:
        owner = sources.values.get(table)
        value = owner.get(key) if isinstance(owner, dict) else None
        if isinstance(owner, dict) and isinstance(value, str) and value:
            path = locate_input(value, sources.origin((table, key)), key=f"{table}.{key}")
            if (table, key) != ("model", "path") or path.exists():  # it may be a hub name
                owner[key] = str(path)


def locate_input(value: str, place: str, *, key: str) -> Path:
    """The absolute path of an input; of two that exist, the one beside the file."""
    path = Path(value).expanduser()
    here = path.absolute()
    beside = Path(place.rpartition(":")[0]).parent.resolve() / path  # an absolute path stays
    if place == "--set" or (here.exists() and not beside.exists()):
        return here
    if here.exists() and not here.samefile(beside):
        logger.warning(
            "%s: %s: %s is taken, which is relative to the file; "
            "the working directory has a %s too, which is not used",
            *(place, key, beside, value),
        )
    return beside


def place_of(sources: Sources, mistake: Mistake) -> tuple[bool, str, int]:
    """Sort key: the order of files and lines, `--set` last."""
    place = sources.origin(mistake.path)
    file, _, line = place.rpartition(":")
    return place == "--set", file, int(line) if line.isdecimal() else 0


def line_of(mistake: Mistake, sources: Sources) -> str:
    place, key = sources.origin(mistake.path), dotted(mistake.path)
    if place == "--set":
        return f"--set {key}: {mistake.text}"
    return f"{place}: {key}: {mistake.text}" if key else f"{place}: {mistake.text}"
