"""`forge data show`: samples of a file of rows, lengths, and the steps of its build."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.data.answers import THINKING
from forge.data.build.output import MANIFEST, explained
from forge.data.build.steps import count_tokens
from forge.data.chat import ChatTemplate
from forge.data.pairs.conversations import conversation
from forge.data.pairs.rows import BadRow, Broken, LeftOut, Row, Unfit, all_rows, row_files
from forge.errors import ConfigError
from forge.views.text import bar, printable

BAR_WIDTH = 40
MAX_TEXT = 4000


@dataclass(slots=True, kw_only=True)
class Look:
    path: Path
    num_rows: int = 0
    unread: LeftOut = field(default_factory=LeftOut)
    """Rows that are no conversation: broken ones, or of other columns."""
    turns: Counter[int] = field(default_factory=Counter[int])
    lengths: Counter[int] = field(default_factory=Counter[int])
    """Rows by length: powers of two, each with its lower end."""
    unit: str = "characters"
    columns: Counter[str] = field(default_factory=Counter[str])
    samples: list[tuple[str, Mapping[str, Any]]] = field(
        default_factory=list[tuple[str, Mapping[str, Any]]]
    )
    steps: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.path), "rows": self.num_rows,
            "unread": dict(self.unread.counts), "unit": self.unit,
            "turns": dict(sorted(self.turns.items())),
            "lengths": dict(sorted(self.lengths.items())), "columns": sorted(self.columns),
            "samples": [row for _, row in self.samples], "steps": self.steps,
        }  # fmt: skip


def look(path: Path, *, num: int, tokenizer: Path | None) -> Look:
    """Reads a file. Raises ConfigError if it, or the tokenizer, cannot be read."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file or directory")
    chat = None if tokenizer is None else ChatTemplate.load(tokenizer, thinking=THINKING)
    found = Look(path=path, unit="characters" if chat is None else "tokens")
    total = sum(1 for _ in _rows(path))
    wanted = {index * total // max(num, 1) for index in range(min(num, total))}
    for number, (place, row) in enumerate(_rows(path)):
        found.num_rows += 1
        if isinstance(row, Broken):
            found.unread.add(f"{row.reason}: {row.detail}", place)
            continue
        found.columns.update(map(str, row))
        if number in wanted:
            found.samples.append((place, row))
        length, num_turns = _measure(row, chat, found.unread, place)
        found.turns[num_turns] += 1
        found.lengths[1 << length.bit_length() >> 1] += 1
    beside = (path if path.is_dir() else path.parent) / MANIFEST
    if beside.is_file():
        found.steps = _steps(beside)
    return found


def render(found: Look) -> RenderableType:
    """Output on a terminal: samples, lengths, steps."""
    parts: list[RenderableType] = []
    for place, row in found.samples:
        parts += [Text(printable(place), style="bold"), *_sample(row), Text()]
    turns = ", ".join(f"{n} with {t} answers" for t, n in sorted(found.turns.items()) if t)
    parts.append(Text(f"{found.num_rows} rows" + (f": {turns}" if turns else "")))
    most = max(found.lengths.values(), default=1)
    for low, count in sorted(found.lengths.items()):
        drawn = bar(count / most, width=BAR_WIDTH)
        parts.append(Text(f"{low:>9} {found.unit} or more  {drawn} {count}"))
    if found.unread.counts:
        parts.append(Text(printable(f"no conversation: {found.unread}")))
    if found.steps:
        parts += [Text(), steps_table(found.steps)]
    return Group(*parts)


def steps_table(steps: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Rows in and out of each step of a build, with reasons, and the first rows of each."""
    table = Table("step", "in", "out", "left out", box=None, pad_edge=False)
    for step in steps:
        reasons = ", ".join(f"{count} {reason}" for reason, count in step["reasons"].items())
        said = f"off: {step['off']}" if "off" in step else reasons
        cells = (step["step"], str(step["in"]), str(step["out"]), said)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return Group(table, *(Text(printable(line)) for line in explained(steps)))


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    root = path if path.is_dir() else path.parent
    for file in row_files(path):
        name = file.relative_to(root).as_posix()
        for number, row in enumerate(all_rows(file), start=1):
            yield f"{name}:{number}", row


def _measure(
    row: Mapping[str, Any], chat: ChatTemplate | None, unread: LeftOut, place: str
) -> tuple[int, int]:
    """Length and number of answers; for a row that is no conversation, its texts and 0."""
    try:
        messages = conversation(row, tag=THINKING)
        num_turns = sum(one.role == "assistant" for one in messages)
        if chat is not None:
            return count_tokens(chat, messages), num_turns
        return sum(len(one.content) for one in messages), num_turns
    except Unfit as err:
        unread.add(f"{err}: {err.detail}" if err.detail else str(err), place)
    except BadRow as err:
        unread.add(str(err), place)
    texts = [value for value in row.values() if isinstance(value, str)]
    return sum(len(text) if chat is None else len(chat.encode_plain(text)) for text in texts), 0


def _sample(row: Mapping[str, Any]) -> Iterator[RenderableType]:
    try:
        for message in conversation(row, tag=THINKING):
            yield Text(f"[{message.role}]", style="bold")
            yield Text(_cut(message.content))
    except (BadRow, Unfit):
        for name, value in row.items():
            yield Text(f"{printable(str(name))}: {_cut(value)}")


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    more = f"\n… {len(text) - MAX_TEXT} more characters" if len(text) > MAX_TEXT else ""
    return printable(text[:MAX_TEXT]) + more


def _steps(path: Path) -> list[Mapping[str, Any]]:
    """The steps of a manifest; none of a file that is no manifest."""
    try:
        found: list[Mapping[str, Any]] = json.loads(path.read_text())["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found
