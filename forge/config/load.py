"""Loads an experiment: reads the file, `extends` and `--set`, and returns a checked `Experiment`;
writes a resolved one, the `experiment.toml` of a run. Loads the settings of `forge data build`.

Called by every command that takes such a file, and by resume with the run's resolved experiment.
Paths of inputs (model, problems, rows, adapter, interpreter, prompts, reward function) are relative
to the file that contains them, or to the working directory if only that has them, or for `--set`.
They become absolute, so that a resolved experiment means the same from any directory; `store.dir`
stays relative, and `output.dir` of a build is relative to the file, wherever the command runs.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tomli_w
from pydantic import ValidationError

from forge.config.checks import PROMPT_FILES, Mistake, check, check_build, found_in
from forge.config.keys import found_mistakes, without
from forge.config.schema import Experiment, dotted
from forge.config.schema.build import DataBuild
from forge.config.schema.problems import is_hub_name
from forge.config.schema.training import names_file
from forge.config.sources import Sources, read_sources
from forge.errors import ConfigError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from forge.config.schema import KeyPath, TomlTable, TomlValue

INPUTS = (
    "problems.path", "problems.sources.*.path", "data.path", "data.sources.*.path", "model.path",
    "model.adapter", "model.chat_template", "serve.python", "reward.function", "input.path",
    "tokenizer.path", "tokenizer.chat_template", "heldout.paths.*",
    *(f"prompt.{key}" for key in PROMPT_FILES),
)  # fmt: skip
"""Keys that name an input, of an experiment and of a build; `*` is any element of an array."""

File = TypeVar("File", Experiment, DataBuild)
"""The schema of a whole file."""


def load_experiment(
    path: Path | str, *, overrides: Sequence[str] = (), is_here: bool = True
) -> Experiment:
    """Reads and checks an experiment. Raises ConfigError: the experiment has mistakes; one line for
    each, in the order of the file.

    Args:
        path: the TOML file.
        overrides: arguments of `--set`, `table.key=value`; later ones override earlier ones.
        is_here: True if it will run on this machine, so the files that it names must exist.
    """
    sources = read_sources(Path(path), overrides=overrides)
    _make_absolute(sources)
    experiment, mistakes = _validate(Experiment, sources.values)
    if experiment is not None:
        mistakes += _numbered(experiment, sources.values)
        experiment, keys = experiment.unrolled()
        known = {mistake.path for mistake in mistakes}
        found = [_in_file(mistake, keys) for mistake in check(experiment, is_here=is_here)]
        mistakes += [each for each in dict.fromkeys(found) if each.path not in known]
    return _whole(experiment, mistakes, sources)


def dump_experiment(experiment: Experiment) -> str:
    """The whole experiment with its defaults; absent keys stay absent.

    `load_experiment` reads the text to an equal value.
    """
    return tomli_w.dumps(experiment.model_dump(mode="json", exclude_none=True))


def load_build(path: Path, *, overrides: Sequence[str] = ()) -> DataBuild:
    """Reads and checks the settings of a build. Raises ConfigError: they have mistakes; one line
    for each, in the order of the file."""
    sources = read_sources(path, overrides=overrides)
    _make_absolute(sources)
    _finish_build(sources)
    build, mistakes = _validate(DataBuild, sources.values)
    if build is not None:
        known = {found.path for found in mistakes}
        mistakes += [each for each in found_in(check_build(build)) if each.path not in known]
    return _whole(build, mistakes, sources)


def _validate(root: type[File], values: TomlTable) -> tuple[File | None, list[Mistake]]:
    """The whole file, if possible with defaults in place of mistakes, and the mistakes."""
    try:
        return root.model_validate(values), []
    except ValidationError as error:
        mistakes = found_mistakes(error, values, root=root)
    try:
        return root.model_validate(without(values, mistakes)), mistakes
    except ValidationError:
        return None, mistakes


def _numbered(experiment: Experiment, values: TomlTable) -> Iterator[Mistake]:
    """Stages with a number of a round in a file that is no run's, which states every table."""
    if Experiment.model_fields.keys() - {"round"} <= values.keys():
        return
    rounds = [(("round", at, "stage"), table.stage) for at, table in enumerate(experiment.round)]
    for place, stages in [(("stage",), experiment.stage), *rounds]:
        for index, stage in enumerate(stages):
            if stage.round is not None:
                text = f"found {stage.round}; the stages of a [[round]] get their number themselves"
                yield Mistake(path=(*place, index, "round"), text=text)


def _in_file(mistake: Mistake, keys: Sequence[KeyPath]) -> Mistake:
    """The mistake with the key in the file of a stage, which has the stages of rounds once."""
    match mistake.path:
        case ("stage", int(index), *rest):
            return replace(mistake, path=(*keys[index], *rest))
        case _:
            return mistake


def _whole(value: File | None, mistakes: list[Mistake], sources: Sources) -> File:
    """The value, if the file has no mistake. Raises ConfigError with all of them otherwise."""

    def place(mistake: Mistake) -> tuple[bool, str, int]:
        """The order of files and lines, `--set` last."""
        file, _, line = (origin := sources.origin(mistake.path)).rpartition(":")
        return origin == "--set", file, int(line) if line.isdecimal() else 0

    ordered = sorted(mistakes, key=place)
    lines = [*(_line_of(mistake, sources) for mistake in ordered), *sources.mistakes]
    if lines or value is None:
        raise ConfigError("\n".join(lines))
    return value


def _make_absolute(sources: Sources) -> None:
    """Make the paths of inputs absolute; `reward.function` is FILE:NAME."""
    for pattern in INPUTS:
        for path, owner in _owners(sources.values, pattern.split(".")):
            key = path[-1]
            value: Any = owner[key]
            if not isinstance(value, str):  # left to validation
                continue
            file, *name = value.rsplit(":", 1) if key == "function" else (value,)
            if not file or (key == "chat_template" and not names_file(value)):
                continue
            located = _locate_input(file, sources.origin(path), key=dotted(path))
            if located.exists() or not _may_be_hub_name(value, path, owner):
                owner[key] = ":".join([str(located), *name])


def _owners(here: TomlValue, parts: list[str], at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Each key of a pattern that is there, and the table or list that contains it."""
    first, *rest = parts
    found: dict[Any, TomlValue] = {}
    if isinstance(here, list):
        found = dict(enumerate(here)) if first == "*" else {}
    elif isinstance(here, dict):
        found = {first: here[first]} if first in here else {}
    for key, value in found.items():
        if rest:
            yield from _owners(value, rest, (*at, key))
        else:
            yield (*at, key), here


def _may_be_hub_name(value: str, path: KeyPath, owner: Any) -> bool:
    """True for a path that does not exist and may name a model or a data set on the hub."""
    if path[0] == "model":
        return path[-1] == "path" and not value.lower().endswith(".gguf")
    is_build = path[0] in ("input", "tokenizer") and path[-1] == "path"
    return (is_build or (path[-1] == "path" and owner.get("source") == "file")) and is_hub_name(
        value
    )


def _finish_build(sources: Sources) -> None:
    """Make `output.dir` absolute, from the file wherever the command runs, and read the file of
    `tokenizer.chat_template`."""
    out, tokenizer = sources.values.get("output"), sources.values.get("tokenizer")
    folder = out.get("dir") if isinstance(out, dict) else None
    if isinstance(out, dict) and isinstance(folder, str) and folder:
        origin = sources.origin(("output", "dir"))
        beside = Path() if origin == "--set" else Path(origin.rpartition(":")[0]).parent
        out["dir"] = str((beside / Path(folder).expanduser()).absolute())
    template = tokenizer.get("chat_template") if isinstance(tokenizer, dict) else None
    if isinstance(tokenizer, dict) and names_file(template) and Path(template).is_file():
        tokenizer["chat_template"] = Path(template).read_text(encoding="utf-8")


def _locate_input(value: str, place: str, *, key: str) -> Path:
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


def _line_of(mistake: Mistake, sources: Sources) -> str:
    place, key = sources.origin(mistake.path), dotted(mistake.path)
    if place == "--set":
        return f"--set {key}: {mistake.text}"
    return f"{place}: {key}: {mistake.text}" if key else f"{place}: {mistake.text}"
