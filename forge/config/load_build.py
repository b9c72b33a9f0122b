"""Loads the settings file of `forge data build`: read, checked, with absolute paths.

Called by that command. Unknown keys are refused, and all mistakes are reported at once, as for an
experiment. Paths are relative to the file that contains them, or to the working directory if only
that has them; `output.dir` is always relative to the file, wherever the command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from forge.config.checks.mistake import absent, mistake
from forge.config.load import line_of, locate_input, place_of
from forge.config.mistakes import found_mistakes, without
from forge.config.schema.build import DataBuild
from forge.config.sources import read_sources
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.config.checks.mistake import Mistake
    from forge.config.schema import TomlTable, TomlValue
    from forge.config.sources import Sources

PROMPT_FILES = ("system", "first", "feedback", "example")
PATH_KEYS = (
    ("input", "path"), ("tokenizer", "path"), ("heldout", "paths"),
    *(("prompt", key) for key in PROMPT_FILES),
)  # fmt: skip


def load_build(path: Path, *, overrides: Sequence[str] = ()) -> DataBuild:
    """Reads and checks the settings of a build.

    Raises:
        ConfigError: they have mistakes; one line for each, in the order of the file.
    """
    sources = read_sources(path, overrides=overrides)
    _make_absolute(sources)
    build, mistakes = _validate(sources.values)
    if build is not None:
        known = {found.path for found in mistakes}
        mistakes += [found for found in _check(build) if found.path not in known]
    ordered = sorted(mistakes, key=partial(place_of, sources))
    lines = [*(line_of(found, sources) for found in ordered), *sources.mistakes]
    if lines or build is None:
        raise ConfigError("\n".join(lines))
    return build


def _validate(values: TomlTable) -> tuple[DataBuild | None, list[Mistake]]:
    """The settings, if possible with defaults in place of mistakes, and the mistakes."""
    try:
        return DataBuild.model_validate(values), []
    except ValidationError as error:
        mistakes = found_mistakes(error, values, root=DataBuild)
    try:
        return DataBuild.model_validate(without(values, mistakes)), mistakes
    except ValidationError:
        return None, mistakes


def _check(build: DataBuild) -> list[Mistake]:
    """Mistakes that concern several keys, or the files of this machine."""
    found: list[Mistake] = []
    if not build.input.path.exists():
        found.append(absent(f"{build.input.path}: no such file or directory", "input", "path"))
    if build.filters.length and build.tokenizer.path is None:
        text = "missing; a model's directory, or filters.length = false"
        found.append(mistake(text, "tokenizer", "path"))
    if build.tokenizer.path is not None and not build.tokenizer.path.is_dir():
        found.append(absent(f"{build.tokenizer.path}: no such directory", "tokenizer", "path"))
    if build.filters.min_tokens > build.filters.max_tokens:
        text = f"found {build.filters.min_tokens}; at most filters.max_tokens"
        found.append(mistake(text, "filters", "min_tokens"))
    for number, place in enumerate(build.heldout.paths):
        if not Path(place).exists():
            found.append(absent(f"{place}: no such file or directory", "heldout", "paths", number))
    for key in PROMPT_FILES:
        path: Path | bool | None = getattr(build.prompt, key)
        if isinstance(path, Path) and not path.is_file():
            found.append(absent(f"{path}: no such file", "prompt", key))
    if build.output.dir.exists() and not build.output.dir.is_dir():
        found.append(mistake(f"{build.output.dir}: no directory", "output", "dir"))
    return found


def _make_absolute(sources: Sources) -> None:
    for table, key in PATH_KEYS:
        owner, place = sources.values.get(table), sources.origin((table, key))
        if not isinstance(owner, dict):
            continue
        value = owner.get(key)
        if isinstance(value, list):
            owner[key] = [_absolute(one, place, f"{table}.{key}") for one in value]
        elif value is not None:
            owner[key] = _absolute(value, place, f"{table}.{key}")
    out = sources.values.get("output")
    folder = out.get("dir") if isinstance(out, dict) else None
    if isinstance(out, dict) and isinstance(folder, str) and folder:
        origin = sources.origin(("output", "dir"))
        beside = Path() if origin == "--set" else Path(origin.rpartition(":")[0]).parent
        out["dir"] = str((beside / Path(folder).expanduser()).absolute())


def _absolute(value: TomlValue, place: str, key: str) -> TomlValue:
    """The value as an absolute path; anything but a text is left to validation."""
    if not isinstance(value, str) or not value:
        return value
    return str(locate_input(value, place, key=key))
