"""Loads an experiment: reads the file, `extends` and `--set`, and returns a checked `Experiment`;
writes a resolved one, the `experiment.toml` of a run. Loads the settings of `forge data build`.

Called by every command that takes such a file, and by resume with the run's resolved experiment.
Paths of inputs (model, problems, rows, adapter, interpreter, prompts, reward function) are relative
to the file that contains them, or to the working directory if only that has them, or for `--set`.
They become absolute, so that a resolved experiment means the same from any directory; `store.dir`
stays relative, and `output.dir` of a build is relative to the file, wherever the command runs.

Later sources override earlier ones key by key; arrays (`[[stage]]` too) are replaced whole. Each
value keeps its origin, so that a message can name the file and line, or the `--set`.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import tomli
import tomli_w
from pydantic import ValidationError

from forge.config.checks import PROMPT_FILES, Mistake, check, check_build, found_in
from forge.config.keys import found_mistakes, without
from forge.config.recipes import list_recipes
from forge.config.schema import (
    Experiment,
    KeyPath,
    TomlTable,
    TomlValue,
    dotted,
    is_hub_name,
    names_file,
)
from forge.config.schema.build import DataBuild
from forge.errors import ConfigError

logger = logging.getLogger(__name__)

INPUTS = (
    "problems.path", "problems.sources.*.path", "data.path", "data.sources.*.path", "model.path",
    "model.adapter", "model.chat_template", "serve.python", "reward.function", "input.path",
    "tokenizer.path", "tokenizer.chat_template", "heldout.paths.*",
    *(f"prompt.{key}" for key in PROMPT_FILES),
)  # fmt: skip
"""Keys that name an input, of an experiment and of a build; `*` is any element of an array."""

File = TypeVar("File", Experiment, DataBuild)


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
        found: list[Mistake] = []
        for mistake in check(experiment, is_here=is_here):
            match mistake.path:  # the stages of rounds are once in the file
                case ("stage", int(index), *rest):
                    found.append(replace(mistake, path=(*keys[index], *rest)))
                case _:
                    found.append(mistake)
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
            is_text = key == "chat_template" and not names_file(value)
            if not file or is_text or (key == "function" and not name):
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


MAX_EXTENDS = 16


@dataclass(slots=True, kw_only=True)
class Sources:
    """The merged values, and the origin of each key: `file:line` or `--set`."""

    file: Path
    values: TomlTable = field(default_factory=dict[str, TomlValue])
    origins: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    mistakes: list[str] = field(default_factory=list[str])

    def origin(self, path: KeyPath) -> str:
        """The place of a key, or of the nearest table around a key that no source contains."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, str(self.file))


def read_sources(path: Path, *, overrides: Sequence[str] = ()) -> Sources:
    """Reads a file, the files that it extends, and `--set` arguments, without checking values.
    Raises ConfigError: a file that cannot be read."""
    sources = Sources(file=path)
    for file, values, lines in reversed(_chain(path)):
        values.pop("extends", None)
        origins = {key: f"{file}:{line}" for key, line in lines.items()}
        _merge(sources, values, origins=origins, into=sources.values, at=())
    sources.mistakes = [mistake for text in overrides if (mistake := _override(sources, text))]
    return sources


def _chain(path: Path) -> list[tuple[Path, TomlTable, dict[KeyPath, int]]]:
    """The file, then the file that it extends, and so on, each with its values and lines."""
    chain: list[tuple[Path, TomlTable, dict[KeyPath, int]]] = []
    seen: list[Path] = []
    place = ""
    while True:
        if path.resolve() in seen or len(seen) == MAX_EXTENDS:
            raise ConfigError(f"{place}extends: {path} is already part of this chain")
        seen.append(path.resolve())
        text = _read(path, place=place)
        values, lines = _parse(text, path)
        chain.append((path, values, lines))
        base = values.get("extends")
        if base is None:
            return chain
        place = f"{path}:{lines['extends',]}: "
        if not isinstance(base, str):
            raise ConfigError(f"{place}extends: found {base!r}; the path of an experiment file")
        path = path.parent / base


PROJECT = Path("pyproject.toml")
"""A TOML file of a clone that is no experiment."""


def _read(path: Path, *, place: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors write a mark before the text
    except FileNotFoundError:
        there = sorted(str(other) for other in path.parent.glob("*.toml") if other != PROJECT)
        own = path.parent / "experiments" / f"{path.stem}.toml"  # in a clone
        near = difflib.get_close_matches(str(path), there, n=1)
        near = near or ([str(own)] if own.exists() else there[:5])
        hint = f"; there is {', '.join(near)}" if near else ""
        if path.stem in (recipe.name for recipe in list_recipes()):
            hint = f'; "forge init {path.stem}" writes it{hint}'
        raise ConfigError(f"{place}{path}: no such file{hint}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text, which TOML must be") from None
    except OSError as error:
        raise ConfigError(f"{place}{path}: {error.strerror}") from None


def _parse(text: str, path: Path) -> tuple[TomlTable, dict[KeyPath, int]]:
    try:
        return tomli.loads(text), key_lines(text)
    except tomli.TOMLDecodeError as error:
        message, line = str(error), text.count("\n") + 1
        if found := re.search(r" \(at line (\d+), column \d+\)$", message):
            message, line = message[: found.start()], int(found[1])
        message = message.removesuffix(" (at end of document)")
        raise ConfigError(f"{path}:{line}: not valid TOML: {message}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None


def _merge(
    sources: Sources,
    values: TomlTable,
    *,
    origins: dict[KeyPath, str],
    into: TomlTable,
    at: KeyPath,
) -> None:
    for name, value in values.items():
        path = (*at, name)
        old = into.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            sources.origins[path] = origins[path]
            _merge(sources, value, origins=origins, into=old, at=path)
        else:
            into[name] = value
            _replace_origins(sources, path, origins)


def _replace_origins(sources: Sources, path: KeyPath, origins: dict[KeyPath, str]) -> None:
    size = len(path)
    for key in [key for key in sources.origins if key[:size] == path]:
        del sources.origins[key]
    sources.origins |= {key: place for key, place in origins.items() if key[:size] == path}


def _override(sources: Sources, text: str) -> str | None:
    """Applies one `table.key=value`; returns a message if it is malformed."""
    key, equals, value = text.partition("=")
    try:
        parts = split_key(key.strip())
    except ValueError:
        parts = ()
    if not equals or not parts:
        return f"--set {text}: found no key=value; write e.g. --set rollout.group_size=4"
    if parts[0] == "extends":
        return f"--set {text}: extends is allowed in an experiment file only"
    target: Any = sources.values
    path: KeyPath = ()
    for part in parts[:-1]:
        step = _step(target, part)
        if isinstance(step, str) and step not in target:
            target[step] = {}
            sources.origins[*path, step] = "--set"
        if step is None or not isinstance(target[step], dict | list):
            return f"--set {key}: {dotted((*path, part))} {_no_step(target, part)}"
        path, target = (*path, step), target[step]
    last = _step(target, parts[-1])
    if last is None:
        return f"--set {key}: {dotted((*path, parts[-1]))} {_no_step(target, parts[-1])}"
    target[last] = _value(value.strip())
    path = (*path, last)
    _replace_origins(sources, path, {path: "--set"})
    return None


def _step(target: TomlTable | list[TomlValue], part: str) -> str | int | None:
    """The key or list index that `part` names in `target`; None if the index is out of range."""
    if isinstance(target, dict):
        return part
    return int(part) if part.isdecimal() and int(part) < len(target) else None


def _no_step(target: TomlTable | list[TomlValue], part: str) -> str:
    if isinstance(target, dict):
        return "is not a table"
    return f"does not exist; found {len(target)}, counted from 0"


def _value(text: str) -> Any:
    """The text as a TOML value, or as a string if it is not one: `model.init=tiny` works."""
    try:
        values = tomli.loads(f"value = {text}")
    except (tomli.TOMLDecodeError, RecursionError):
        return text
    return values["value"] if len(values) == 1 else text


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of the statement that first names each key or array element."""
    lines: dict[KeyPath, int] = {}
    last: dict[KeyPath, int] = {}  # index of the last [[table]] of each array of tables
    table: KeyPath = ()
    for line, statement, values in _statements(text):
        if not statement.lstrip().startswith("["):
            _mark(values, table, line=line, lines=lines)
            continue
        table, inner = (), values
        while inner and isinstance(inner, dict):
            ((name, inner),) = inner.items()
            table = (*table, name)
            lines.setdefault(table, line)
            if isinstance(inner, list):
                last[table] = last.get(table, -1) + 1
            if table in last:  # a key below an array of tables belongs to its last element
                table = (*table, last[table])
                lines.setdefault(table, line)
    return lines


def split_key(text: str) -> tuple[str, ...]:
    """The parts of a dotted key: `a."b.c"` is `("a", "b.c")`. Raises ValueError: the text is not a
    key, or has an empty part."""
    try:
        value: TomlValue = tomli.loads(f"{text} = 0")
    except (tomli.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{text!r} is not a key") from error
    parts: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        parts.append(name)
    if value != 0 or not all(parts):
        raise ValueError(f"{text!r} is not a key")
    return tuple(parts)


def _statements(text: str) -> Iterator[tuple[int, str, TomlTable]]:
    """First line, text and values of each statement, blank line and comment."""
    first, statement = 1, ""
    for number, line in enumerate(text.split("\n"), start=1):
        statement += f"{line}\n"
        try:
            values = tomli.loads(statement)
        except tomli.TOMLDecodeError:  # a value that ends on a later line
            continue
        yield first, statement, values
        first, statement = number + 1, ""


def _mark(value: TomlValue, path: KeyPath, *, line: int, lines: dict[KeyPath, int]) -> None:
    """Notes the line for everything inside a value."""
    if isinstance(value, dict):
        items = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for name, inner in items:
        lines.setdefault((*path, name), line)
        _mark(inner, (*path, name), line=line, lines=lines)
