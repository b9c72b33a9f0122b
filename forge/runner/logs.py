"""`forge logs RUN [PROCESS]`: the last lines of each process, all or those wanted, and what comes
after."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.process.logtail import clean, read_last_lines
from forge.store.layout import RunPaths, is_owned
from forge.views.logs import Level, LogFilter, LogTail, compile_pattern

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


def parse_filter(level: str | None, pattern: str | None) -> LogFilter | None:
    """From what a person wrote; None for all lines. Raises ConfigError."""
    if level is None and not pattern:
        return None
    known = [each.name.lower() for each in Level]
    if level is not None and level.lower() not in known:
        raise ConfigError(f"--level: found {level!r}; allowed are {', '.join(known)}")
    least = Level.DEBUG if level is None else Level[level.upper()]
    return LogFilter(level=least, pattern=compile_pattern(pattern or ""))


def read_logs(
    paths: RunPaths,
    files: list[Path],
    *,
    num_lines: int,
    wanted: LogFilter | None = None,
    is_followed: bool = False,
) -> Iterator[str]:
    """Each file's end, with its name on each line where there are several; then, if asked for, what
    is appended until the run ends. A filter looks at the last 256 kB of each."""
    if wanted is None:
        yield from _last_lines(files, num_lines=num_lines)
        if is_followed:
            yield from _follow(paths, files)
        return
    tails = {file: LogTail(file) for file in files}
    for file, tail in tails.items():
        kept = [line.text for line in tail.read() if wanted.takes(line)]
        yield from (_named(file, text, files) for text in kept[-num_lines:])
    alive = is_followed
    while alive:
        alive = is_owned(paths)
        for file, tail in tails.items():
            new = (line.text for line in tail.read() if wanted.takes(line))
            yield from (_named(file, text, files) for text in new)
        time.sleep(POLL_S)


def _last_lines(files: list[Path], *, num_lines: int) -> Iterator[str]:
    for file in files:
        for line in read_last_lines(file, num_lines=num_lines).splitlines():
            yield _named(file, line, files)


def _follow(paths: RunPaths, files: list[Path]) -> Iterator[str]:
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
