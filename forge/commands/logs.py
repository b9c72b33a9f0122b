"""`forge logs RUN [PROCESS]`: the last lines of each process, and with -f the new ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forge.errors import ConfigError
from forge.store.ownership import is_owned
from forge.views.logs import Level, LogFilter, LogTail, compile_pattern
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forge.store.layout import RunPaths

POLL_S = 0.25


def log_files(paths: RunPaths, *, process: str | None = None) -> list[Path]:
    """Log files of the latest attempt, or the file of one process.

    Raises:
        ConfigError: there is no such log; the message lists the logs.
    """
    files = sorted((paths.root / "logs" / "latest").glob("*.log"))
    chosen = [file for file in files if process in (None, file.stem)]
    if not chosen:
        names = ", ".join(file.stem for file in files) or "none"
        raise ConfigError(f"{paths.name}: no log of {process or 'any process'}; found {names}")
    return chosen


def parse_filter(level: str | None, pattern: str | None) -> LogFilter | None:
    """The filter for `--level` and `--grep`; None for all lines. Raises ConfigError."""
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
    process: str | None = None,
    num_lines: int,
    wanted: LogFilter | None = None,
    is_followed: bool = False,
) -> Iterator[str]:
    """The last lines of each file, then, if followed, new lines until the run ends.

    Each line has the name of its file if there are several. Logs of processes that start later are
    included. A truncated file is read again from its start. Of each file the last 256 kB are read.
    """
    files, chosen = list(files), wanted or LogFilter()
    tails = {file: LogTail(file, keeps_date=True) for file in files}
    for file, tail in tails.items():
        kept = chosen.choose(tail.read())
        yield from (_named(file, line.text, files) for line in kept[-num_lines:])
    alive = is_followed
    while alive:
        alive = is_owned(paths)
        for file, tail in tails.items():
            new = chosen.choose(tail.read())
            yield from (_named(file, line.text, files) for line in new)
        time.sleep(POLL_S)
        for file in _new_files(files, process=process):
            files.append(file)
            tails[file] = LogTail(file, keeps_date=True)


def _new_files(files: list[Path], *, process: str | None) -> list[Path]:
    """Logs of processes that started since, such as the next stage's trainer; none if one process
    was requested."""
    if process is not None or not files:
        return []
    return sorted(set(files[0].parent.glob("*.log")) - set(files))


def _named(file: Path, line: str, files: list[Path]) -> str:
    return line if len(files) == 1 else f"{printable(file.stem):12} {line}"
