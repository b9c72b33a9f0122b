"""The recipes that forge brings: experiment files in `forge/recipes`, which in a checkout is a link
to `experiments`. `forge init` lists them and writes one, with the files that it extends and the
settings of its rows (`experiments/rows`), where the user wants it. Called by the command line only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

import tomli

from forge.errors import ConfigError, MachineError

BUILD = re.compile(r"forge data build experiments/(\S+\.toml)")
"""Settings of the rows that a recipe trains on, in its comment."""
SCHEMA = "schema.json"
"""JSON schema beside the recipes, which the first line of each names for editors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str
    text: str

    @property
    def file(self) -> str:
        return f"{self.name}.toml"

    @property
    def summary(self) -> str:
        """First sentence of its comment."""
        lines = takewhile(lambda line: line.startswith("#"), self.text.splitlines())
        comment = " ".join(line.removeprefix("# ") for line in lines if not line.startswith("#:"))
        return re.split(r'(?<=\.) (?=[A-Z"])', comment, maxsplit=1)[0]


def list_recipes() -> list[Recipe]:
    paths = sorted(_folder().glob("*.toml"))
    return [Recipe(name=path.stem, text=path.read_text(encoding="utf-8")) for path in paths]


def write_recipe(name: str, *, into: Path) -> list[Path]:
    """Writes a recipe, the files that it extends, the settings of its rows and the schema for
    editors into a folder.

    Returns the written paths, the recipe first. Files that have the right content are left alone.
    Raises ConfigError: there is no such recipe, or a file of another content is in the way;
    MachineError: a file cannot be written."""
    recipes = list(_with_bases(name))
    # The user's folder has no experiments/.
    texts = {recipe.file: recipe.text.replace("experiments/", "") for recipe in recipes}
    for file in BUILD.findall(recipes[0].text):
        texts[file] = (_folder() / file).read_text(encoding="utf-8")
    own = into / recipes[0].file
    if own.exists():
        raise ConfigError(f"{own}: it exists already, and forge init overwrites no experiment")
    texts[SCHEMA] = (_folder() / SCHEMA).read_text(encoding="utf-8")
    missing = {into / file: text for file, text in texts.items() if _is_missing(into / file, text)}
    for path, text in missing.items():
        _write(path, text)
    return list(missing)


def _with_bases(name: str) -> Iterator[Recipe]:
    """The recipe, then the one that it extends, and so on."""
    recipes = {recipe.name: recipe for recipe in list_recipes()}
    wanted = name.removesuffix(".toml")
    if wanted not in recipes:
        near = get_close_matches(wanted, recipes, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"{name}: no such recipe; {meant}allowed: {', '.join(recipes)}")
    while wanted:
        recipe = recipes[wanted]
        yield recipe
        wanted = str(tomli.loads(recipe.text).get("extends", "")).removesuffix(".toml")


def _is_missing(path: Path, text: str) -> bool:
    """True if a file is to be written. Raises ConfigError if a file of the user has its name."""
    try:
        found = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except (OSError, UnicodeDecodeError):
        found = ""
    if found == text:
        return False
    if path.name == SCHEMA:
        from forge.config.schema import Experiment  # a list of recipes needs no schema

        if f'"description": "{Experiment.__doc__}"' in found:  # of another version of forge
            return True
    raise ConfigError(f"{path}: it exists with other content, and forge init overwrites no file")


def _write(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(exist_ok=True)
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)
    except OSError as error:
        raise MachineError(f"{path.absolute()}: cannot be written: {error.strerror}") from error


def _folder() -> Path:
    return Path(__file__).parents[1] / "recipes"
