"""`forge logs RUN [PROCESS]`: the last lines of each process, and what comes after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.process.logtail import clean, read_last_lines
from forge.store.layout import RunPaths, is_owned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLL_S = 0.25


def log_files(paths: RunPaths, *, process: str | None = None) -> list[Path]:
    """Logs of the latest attempt, of one process if asked for. Raises ConfigError naming what there
    is.
    """
    files = sorted((paths.root / "logs" / "latest").glob("*.log"))
    chosen = [file for file in files if process in (None, file.stem)]
    if not chosen:
        names = ", ".join(file.stem for file in files) or "none"
        raise ConfigError(f"{paths.name}: no log of {process or 'any process'}; there is {names}")
    return chosen


def last_lines(files: list[Path], *, num_lines: int) -> Iterator[str]:
    """Each file's end; with its name on each line where there are several."""
    for file in files:
        for line in read_last_lines(file, num_lines=num_lines).splitlines():
            yield _named(file, line, files)


def follow(paths: RunPaths, files: list[Path]) -> Iterator[str]:
    """What is appended from now on, until the run ends."""
    offsets = {file: file.stat().st_size for file in files}
    alive = True
    while alive:
        alive = is_owned(paths)
        for file in files:
            with file.open("rb") as opened:
                opened.seek(offsets[file])
                text = opened.read()
            whole = text[: text.rfind(b"\n") + 1]
            offsets[file] += len(whole)
            for line in whole.decode("utf-8", errors="replace").splitlines():
                yield _named(file, clean(line), files)
        time.sleep(POLL_S)


def _named(file: Path, line: str, files: list[Path]) -> str:
    return line if len(files) == 1 else f"{file.stem:12} {line}"
