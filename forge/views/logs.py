"""Logs of a run's processes as they grow: for `forge logs`, which prints the last lines of each
process and with -f the new ones, and for the monitor.

Each file is followed and gives its new lines, filtered by level and pattern. A line without a level
(a traceback, a print) gets that of the line before.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import regex

from forge.errors import ConfigError
from forge.store.layout import is_owned
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from forge.store.layout import RunPaths

READ_BYTES = 256 * 1024
"""Bytes read from each file at once: its end at first, later its newest part if it grows faster."""
KEPT_LINES = 5000
PATTERN_S = 0.25
"""CPU seconds for all lines of one refresh, during which the monitor cannot draw; 5000 lines take
10 ms. Compiling a pattern is not bounded: `(a{1000}){1000}` takes memory."""
DATE, MILLISECONDS = len("2026-11-21 "), len(",313")
"""Characters of a line's time that are cut, so that more of the line is visible."""

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d{3}")
_VLLM_STAMP = re.compile(r"(?:\(.+? pid=\d+\) )?[A-Z]+ (\d\d-\d\d \d\d:\d\d:\d\d) \[")
"""`(EngineCore pid=7) INFO 11-21 22:08:54 [core.py:114] ...`: no year, no milliseconds."""
_LEVEL = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|(?P<warns>Warning: )|^Traceback \(most recent call"
)


class Level(IntEnum):
    """Severity of a line; also the lowest one shown."""

    DEBUG = 0
    INFO = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line, safe to print."""

    process: str
    text: str
    level: Level
    at: str
    """Its time, or that of the last line with one; sorts as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Selection of lines by process, level and pattern."""

    process: str | None = None
    level: Level = Level.DEBUG
    pattern: regex.Pattern[str] | None = None

    def choose(self, lines: Iterable[LogLine]) -> list[LogLine]:
        """The lines that match. Raises ConfigError if the pattern needs more than PATTERN_S."""
        until = time.thread_time() + PATTERN_S
        return [
            line
            for line in lines
            if self.process in (None, line.process)
            and line.level >= self.level
            and (self.pattern is None or _has(line.text, self.pattern, until=until))
        ]


def compile_pattern(words: str) -> regex.Pattern[str] | None:
    """A case-insensitive regular expression; None for empty `words`. Raises ConfigError."""
    try:
        return regex.compile(words, regex.IGNORECASE) if words else None
    except regex.error as error:
        raise ConfigError(f"filter {words!r}: not a regular expression: {error}") from error


def _has(text: str, pattern: regex.Pattern[str], *, until: float) -> bool:
    try:
        return pattern.search(text, timeout=max(until - time.thread_time(), 0.0)) is not None
    except TimeoutError as error:
        raise ConfigError(
            f"filter {pattern.pattern!r}: too slow for these lines; are repetitions nested?"
        ) from error


@dataclass(slots=True)
class LogTail:
    """One file and the position read up to."""

    path: Path
    keeps_date: bool = False
    """False to cut the date and the milliseconds of each line."""
    offset: int = -1
    """Position read up to; -1 before the first read."""
    _level: Level = Level.INFO
    _at: str = ""
    _year: int = 0
    """Year of its last modification."""

    def read(self) -> list[LogLine]:
        """New complete lines. A truncated file is read again from its beginning."""
        try:
            stat = self.path.stat()
            size, self._year = stat.st_size, time.localtime(stat.st_mtime).tm_year
            if size == self.offset:
                return []
            with self.path.open("rb") as file:
                is_first = self.offset < 0
                begin = 0 if is_first or size < self.offset else self.offset
                skipped = max(begin, size - READ_BYTES)
                file.seek(skipped)
                data = file.read(size - skipped)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset = skipped + len(whole)
        lines = whole.decode("utf-8", errors="replace").split("\n")[:-1]
        if skipped > begin:
            lines = lines[1:]  # the first line is incomplete
        return [self._line(text) for text in lines if text.strip()]

    def _line(self, text: str) -> LogLine:
        text = text.rpartition("\r")[2]  # the last state of a progress bar
        level = _LEVEL.search(text[:200])
        if level is not None:
            word = level[1] or ("WARNING" if level["warns"] else "ERROR")
            self._level = Level.ERROR if word == "CRITICAL" else Level[word]
        stamp = _STAMP.match(text)
        if stamp:
            self._at = stamp[0]
            if not self.keeps_date:
                text = text[DATE : stamp.end() - MILLISECONDS] + text[stamp.end() :]
        elif engines := _VLLM_STAMP.match(text):
            self._at = max(self._at, f"{self._at[:4] or self._year}-{engines[1]}")
        return LogLine(process=self.path.stem, text=printable(text), level=self._level, at=self._at)


@dataclass(slots=True)
class LogBook:
    """Last lines of every process of the latest attempt."""

    paths: RunPaths
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    _tails: dict[Path, LogTail] = field(default_factory=dict)

    def read(self) -> list[LogLine]:
        """New lines of all processes, oldest first; `lines` receives them too."""
        folder = self.paths.root / "logs" / "latest"
        new: list[LogLine] = []
        for path in sorted(folder.resolve().glob("*.log")):
            new += self._tails.setdefault(path, LogTail(path)).read()
        new.sort(key=lambda line: line.at)
        self.lines.extend(new)
        return new

    def processes(self) -> list[str]:
        """Names of all processes that have a log."""
        return sorted({path.stem for path in self._tails})


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
