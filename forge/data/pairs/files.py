"""SFT rows from files: JSON, JSON lines or Parquet.

`read_pairs` is called while a run is prepared, in a thread, and reads conversations alone, in any
of the columns of `conversations.py`. A row that is none is an error, which names file and row; a
row that must not be trained on (a duplicate) is left out, counted by its reason, and shown at the
run's start. The other formats are read by `forge data build`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.data.pairs.conversations import conversation, retag
from forge.data.pairs.rows import (
    KEY,
    BadRow,
    LeftOut,
    Unfit,
    columns_of,
    is_unicode,
    row_files,
    rows_of,
)
from forge.errors import ConfigError
from forge.records import Message, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from forge.data.prompts.prompt_set import PromptSet

logger = logging.getLogger(__name__)
LEFT_OUT = "`forge data build` leaves such rows out, and lists them"
MADE = (
    ({"python_code"}, "`forge data harvest rows:PATH` makes answers and conversations of problems"),
    *(
        (columns, f'`forge data build` with input.format = "{name}" makes conversations of them')
        for name, columns in (
            ("trinity", {"pytorch_code", "triton_code"}), ("traces", {"pytorch_code", "turns"}),
        )
    ),
)  # fmt: skip
"""Columns of rows that are no conversations yet, and the command that makes some of them."""


def _maker(row: Mapping[str, Any]) -> str | None:
    """The command that makes conversations of rows with these columns."""
    if "messages" in row:
        return None
    return next((command for columns, command in MADE if columns <= row.keys()), None)


def id_of(row: Mapping[str, Any], name: str, number: int) -> str:
    """The value of a column, or else the row's number."""
    found = row.get(name)
    return str(number if found is None else found)


def messages_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """A row with a conversation. Its id is `id`, or the row's number."""
    if maker := _maker(row):
        raise BadRow(f"found columns {columns_of(row)}, which are no conversation; {maker}")
    messages = conversation(row, tag=prompts.thinking)
    num_turns = sum(message.role == "assistant" for message in messages)
    return Pair(problem_id=id_of(row, "id", number), messages=messages, num_turns=num_turns)


def read_pairs(
    path: Path, *, prompts: PromptSet, key: str = KEY, say: Callable[[str], None] = logger.info
) -> list[Pair]:
    """The conversations of a file or directory in the order of the files, without duplicates, with
    the run's tag of thinking. Questions in the run's own templates state the facts of the run;
    others keep their messages. `say` gets the number of rows, and what was left out and why. Raises
    ConfigError, which names `key`; MachineError without pyarrow."""
    pairs: dict[tuple[Message, ...], Pair] = {}
    left_out, bare = LeftOut(), LeftOut()
    num_restated = 0
    for file in row_files(path, key=key):
        for number, row in enumerate(rows_of(file, key=key), start=1):
            place = f"{file.name}, row {number}"
            try:
                pair = messages_pair(row, number=number, prompts=prompts)
                retagged = retag(pair.messages, tag=prompts.thinking)
                messages = prompts.restated(retagged)
                num_restated += messages != retagged
                if not all(is_unicode(one.content) for one in messages):
                    raise Unfit("text that is no Unicode")
            except Unfit as reason:
                left_out.add(str(reason), place)
                continue
            except BadRow as err:
                advice = "" if _maker(row) else f"; {LEFT_OUT}"
                raise ConfigError(f"{key}: {file}, row {number}: {err}{advice}") from None
            if not prompts.thinking and retagged != pair.messages:
                bare.add("trained without their thinking, as prompt.thinking is empty", place)
            if messages in pairs:
                left_out.add("the same again", place)
            pairs.setdefault(messages, replace(pair, messages=messages))
    if not pairs:
        raise ConfigError(f"{key}: {path}: no row to train on; left out: {left_out}")
    said = f"; {bare}" if bare.counts else ""
    said += f"; {num_restated} with this run's prompts" if num_restated else ""
    say(f"{len(pairs)} rows from {path}; left out: {left_out}{said}")
    return list(pairs.values())
