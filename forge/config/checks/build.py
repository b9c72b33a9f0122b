"""Checks of the settings file of `forge data build`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config.checks.mistake import Mistake, absent, mistake
from forge.config.checks.problems import check_rows
from forge.config.schema.problems import is_hub_name

if TYPE_CHECKING:
    from forge.config.schema.build import DataBuild

PROMPT_FILES = ("system", "first", "feedback", "example")
"""Keys of `[prompt]` that name files."""


def check_build(build: DataBuild) -> Iterator[Mistake]:
    """Mistakes that concern several keys, or the files of this machine."""
    yield from check_rows(build.input.path, "input", "path")
    if build.filters.length and build.tokenizer.path is None:
        text = "missing; a model's directory, or filters.length = false"
        yield mistake(text, "tokenizer", "path")
    tokenizer = build.tokenizer.path
    if tokenizer is not None and not (tokenizer.is_dir() or is_hub_name(str(tokenizer))):
        text = f'found "{tokenizer}", which is not a directory; a directory or a hub name'
        yield absent(text, "tokenizer", "path")
    if build.filters.min_tokens > build.filters.max_tokens:
        text = f"found {build.filters.min_tokens}; at most filters.max_tokens"
        yield mistake(text, "filters", "min_tokens")
    for number, place in enumerate(build.heldout.paths):
        if not Path(place).exists():
            yield absent(f"{place}: no such file or directory", "heldout", "paths", number)
    for key in PROMPT_FILES:
        path: Path | bool | None = getattr(build.prompt, key)
        if isinstance(path, Path) and not path.is_file():
            yield absent(f"{path}: no such file", "prompt", key)
    if build.output.dir.exists() and not build.output.dir.is_dir():
        yield mistake(f"{build.output.dir}: no directory", "output", "dir")
