"""Held-out problems as signatures: problem files, or rows with a column of code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge.data.build.near import SignatureIndex
from forge.data.build.normalise import normalise_text
from forge.data.build.quality import parse
from forge.data.build.rows import Broken, read_all
from forge.data.build.shingles import signature
from forge.data.pairs.files import SUFFIXES
from forge.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

CODE_COLUMNS = ("code", "python_code", "pytorch_code")


class HeldoutProblems:
    """Modules that no training row may be similar to."""

    def __init__(self, paths: Sequence[str], *, threshold: float) -> None:
        """Reads them. Raises ConfigError for a path without problems, or a row without code."""
        self._index = SignatureIndex(threshold)
        self._names: list[str] = []
        self.sources: list[str] = []
        """The source of every problem, in order."""
        for path in paths:
            before = len(self.sources)
            for name, source in _sources(Path(path)):
                self._add(name, normalise_text(source))
            if len(self.sources) == before:
                raise ConfigError(
                    f"heldout.paths: {path}: no problem in it; *.py, *{', *'.join(SUFFIXES)}"
                )

    def match(self, module: np.ndarray) -> str | None:
        """Name and similarity of the most similar problem; None if none is similar."""
        found = self._index.similar(module)
        if not found:
            return None
        index, share = max(found, key=lambda each: (each[1], -each[0]))
        return f"{self._names[index]} ({share:.2f})"

    def _add(self, name: str, source: str) -> None:
        self.sources.append(source)
        if self._index.add(signature(source, parse(source))) == len(self._names):
            self._names.append(name)


def _sources(path: Path) -> Iterator[tuple[str, str]]:
    """Name and source of each problem."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix in (".py", *SUFFIXES)]
        for file in sorted(files):
            if not file.name.startswith(("_", ".")):
                yield from _file_sources(file, file.relative_to(path).as_posix())
    else:
        yield from _file_sources(path, path.name)


def _file_sources(file: Path, name: str) -> Iterator[tuple[str, str]]:
    if file.suffix == ".py":
        try:
            yield name, file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"heldout.paths: {file}: cannot be read: {err}") from None
        return
    if file.suffix not in SUFFIXES:
        raise ConfigError(
            f"heldout.paths: {file}: found {file.suffix or 'no suffix'}; "
            f"*.py, *{', *'.join(SUFFIXES)}"
        )
    for number, row in enumerate(read_all(file), start=1):
        if isinstance(row, Broken):
            raise ConfigError(f"heldout.paths: {file}, row {number}: {row.reason}: {row.detail}")
        source = next(
            (row[column] for column in CODE_COLUMNS if isinstance(row.get(column), str)), None
        )
        if source is None:
            raise ConfigError(
                f"heldout.paths: {file}, row {number}: found columns {', '.join(map(str, row))}; "
                f"one of {', '.join(CODE_COLUMNS)}"
            )
        yield f"{name}:{number}", source
