"""Logs of a run's processes as they grow: for `forge logs`, which prints the last lines of each
process and with -f the new ones, and for the monitor.

Each file is followed and gives its new lines, filtered by level and pattern. A line without a level
(a traceback, a print) gets that of the line before.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import regex

from forge.errors import ConfigError
from forge.store.layout import RunPaths, is_owned
from forge.views.text import printable

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
    keeps_date: bool = False
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    _tails: dict[Path, LogTail] = field(default_factory=dict)

    def read(self) -> list[LogLine]:
        """New lines of all processes, oldest first; `lines` receives them too. Includes logs of
        processes that started since, such as the next stage's trainer."""
        folder = self.paths.root / "logs" / "latest"
        new: list[LogLine] = []
        for path in sorted(folder.resolve().glob("*.log")):
            tail = self._tails.setdefault(path, LogTail(path, keeps_date=self.keeps_date))
            new += tail.read()
        new.sort(key=lambda line: line.at)
        self.lines.extend(new)
        return new

    def processes(self) -> list[str]:
        return sorted({path.stem for path in self._tails})


POLL_S = 0.25


def parse_filter(process: str | None, level: str | None, pattern: str | None) -> LogFilter:
    """The filter for a process, `--level` and `--grep`. Raises ConfigError."""
    known = [each.name.lower() for each in Level]
    if level is not None and level.lower() not in known:
        raise ConfigError(f"--level: found {level!r}; allowed are {', '.join(known)}")
    least = Level.DEBUG if level is None else Level[level.upper()]
    return LogFilter(process=process, level=least, pattern=compile_pattern(pattern or ""))


def read_logs(
    paths: RunPaths, wanted: LogFilter, *, num_lines: int, is_followed: bool = False
) -> Iterator[str]:
    """The last lines of each process, then, if followed, new lines until the run ends.

    Each line has the name of its process if there are several. A truncated file is read again from
    its start. Of each file the last 256 kB are read. Raises ConfigError if there is no such log;
    the message lists the logs.
    """
    book = LogBook(paths, keeps_date=True)
    first, names = book.read(), book.processes()
    if not names or wanted.process not in (None, *names):
        listed = ", ".join(names) or "none"
        what = wanted.process or "any process"
        raise ConfigError(f"{paths.name}: no log of {what}; found {listed}")
    for name in names:
        own = wanted.choose(line for line in first if line.process == name)
        yield from _shown(own[-num_lines:], book, wanted)
    alive = is_followed
    while alive:
        alive = is_owned(paths)
        yield from _shown(wanted.choose(book.read()), book, wanted)
        time.sleep(POLL_S)


def _shown(lines: Iterable[LogLine], book: LogBook, wanted: LogFilter) -> Iterator[str]:
    is_one = wanted.process is not None or len(book.processes()) == 1
    for line in lines:
        yield line.text if is_one else f"{printable(line.process):12} {line.text}"
