"""Sources of problems for a harvest, which words of the command name. They read code and
run none of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from forge.data.harvest.records import HarvestSource
from forge.data.harvest.sources.compositions.draw import open_compositions
from forge.data.harvest.sources.modules import ModuleTree, Paritybench, open_package, open_rows
from forge.data.harvest.sources.samples import open_samples
from forge.errors import ConfigError

OPENERS: dict[str, Callable[[str], HarvestSource]] = {
    "compositions": open_compositions, "package": open_package, "torch-samples": open_samples,
}  # fmt: skip
"""Sources by the word before a colon, which need no path."""
ALLOWED = "a directory of Python files, rows:PATH, compositions:N, package:NAME, torch-samples"


def open_sources(
    words: Sequence[str], *, locate: Callable[[Path], Path] = Path
) -> list[HarvestSource]:
    """The source of each word, in order; `locate` gives the directory of a data set on the hub, any
    other path as it is. Raises ConfigError for a word that names no source, a source without a
    file, or one named twice."""
    sources = [_open(word, locate) for word in words]
    names = [one.name for one in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"SOURCE: {twice}: two sources of this name; their problems' ids clash")
    return sources


def _open(word: str, locate: Callable[[Path], Path]) -> HarvestSource:
    kind, _, rest = word.partition(":")
    if kind in OPENERS:
        return OPENERS[kind](rest)
    if kind == "rows":
        return open_rows(rest, locate)
    path = Path(word)
    if not path.is_dir():
        found = "a file" if path.exists() else "no such directory"
        raise ConfigError(f"SOURCE: {word}: {found}; {ALLOWED}")
    source = Paritybench(path) if Paritybench.is_one(path) else ModuleTree(path)
    if not source.units():
        raise ConfigError(f"SOURCE: {word}: no *.py in it; {ALLOWED}")
    return source
