"""SFT rows from files: JSON, JSON lines or Parquet, in one of the formats of `data.format`.

Called while a run is prepared, in a thread. A row that does not match the format is an error, which
names file and row; a row that must not be trained on (a wrong kernel, a duplicate) is left out and
counted in the log.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from forge.data.pairs.datasets import BadRow, Unfit, kernelbook_pair, text_of, trinity_pair
from forge.errors import ConfigError, MachineError, pip_install
from forge.records import Message, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from forge.config.schema import DataTable
    from forge.data.prompts.prompt_set import PromptSet

logger = logging.getLogger(__name__)

SUFFIXES = (".json", ".jsonl", ".parquet")
ROLES = ("system", "user", "assistant")
KEY = "data.path"
"""Key that messages name."""


def messages_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """A row with `messages`: a list of role and content, or the same as JSON text. The last message
    is the answer. Its id is `id`, or the row's number. It keeps its own messages, whatever the
    prompts of the run."""
    found = row.get("messages")
    try:
        listed = json.loads(found) if isinstance(found, str) else found
    except (ValueError, RecursionError) as err:
        raise BadRow(f"messages is text that is no JSON: {err}") from None
    if not isinstance(listed, list) or not listed:
        raise BadRow(f"found columns {', '.join(row)}; messages must be a list that is not empty")
    messages = tuple(_message(one) for one in listed)
    if messages[-1].role != "assistant":
        raise Unfit("last message is no answer")
    num_turns = sum(message.role == "assistant" for message in messages)
    name = row.get("id")
    problem_id = str(number if name is None else name)
    return Pair(problem_id=problem_id, messages=messages, num_turns=num_turns)


FORMATS: dict[str, Callable[..., Pair]] = {
    "messages": messages_pair,
    "kernelbook": kernelbook_pair,
    "trinity": trinity_pair,
}


def read_pairs(table: DataTable, *, prompts: PromptSet) -> list[Pair]:
    """The rows of `table.path` in the order of the files, without duplicates, with the prompts of
    the run where a row has none.

    Raises:
        ConfigError: no such file, a row that does not match the format, or no row to train on.
        MachineError: a Parquet file, and pyarrow is missing.
    """
    assert table.path is not None
    to_pair = FORMATS[table.format]
    pairs: dict[tuple[Message, ...], Pair] = {}
    left_out: Counter[str] = Counter()
    for file in row_files(table.path):
        for number, row in enumerate(rows_of(file), start=1):
            try:
                pair = to_pair(row, number=number, prompts=prompts)
            except Unfit as reason:
                left_out[str(reason)] += 1
                continue
            except BadRow as err:
                raise ConfigError(
                    f'data.path: {file}, row {number} ("{table.format}"): {err}'
                ) from None
            if pair.messages in pairs:
                left_out["the same again"] += 1
            pairs.setdefault(pair.messages, pair)
    words = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    if not pairs:
        raise ConfigError(
            f'data.path: {table.path}: no row to train on in format "{table.format}"'
            + (f"; left out: {words}" if words else "")
        )
    logger.info("%d rows from %s; left out %s", len(pairs), table.path, words or "none")
    return list(pairs.values())


def row_files(path: Path, *, key: str = KEY) -> list[Path]:
    """A file of rows, or all below a directory. Raises ConfigError, which names `key`."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if not found:
            raise ConfigError(f"{key}: {path}: no file *{', *'.join(SUFFIXES)} in it")
        return found
    if not path.is_file():
        raise ConfigError(f"{key}: {path}: no such file")
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"{key}: {path}: found {path.suffix or 'no suffix'}; *{', *'.join(SUFFIXES)}"
        )
    return [path]


def rows_of(file: Path, *, key: str = KEY) -> Iterator[Mapping[str, Any]]:
    """Rows as mappings. Parquet is read a batch at a time, JSON lines one by one.

    Raises:
        ConfigError: the file cannot be read, or not as its suffix says; names `key`, and the row.
        MachineError: a Parquet file, and pyarrow is missing.
    """
    if file.suffix == ".parquet":
        yield from _parquet_rows(file, key=key)
        return
    for number, row in enumerate(_json_values(file, key=key), start=1):
        if not isinstance(row, dict):
            raise ConfigError(f"{key}: {file}, row {number}: found {type(row).__name__}; an object")
        yield row


def _json_values(file: Path, *, key: str) -> Iterator[Any]:
    """The elements of one list, or one value per line, whatever the suffix."""
    try:
        # Only at newlines: JSON strings may contain other line separators of Unicode. Some editors
        # write a mark first.
        with file.open(encoding="utf-8-sig", newline="\n") as lines:
            number = 0
            for line in lines:
                if not line.strip():
                    continue
                if number == 0 and line.lstrip().startswith("["):
                    yield from _json(line + lines.read(), place=f"{key}: {file}")
                    return
                number += 1
                yield _json(line, place=f"{key}: {file}, row {number}")
    except OSError as err:
        raise _unreadable(file, err, key=key) from None
    except UnicodeDecodeError as err:
        raise ConfigError(f"{key}: {file}: no text in UTF-8: {err}") from None


def _json(text: str, *, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{place}: neither a JSON list nor JSON lines: {err}") from None


def _parquet_rows(file: Path, *, key: str) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MachineError(
            f"{key}: {file}: Parquet needs pyarrow: {pip_install('train')}, or make setup"
        ) from None
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except OSError as err:
        raise _unreadable(file, err, key=key) from None
    except ArrowException as err:
        raise ConfigError(f"{key}: {file}: no Parquet file: {err}") from None


def _unreadable(file: Path, err: OSError, *, key: str) -> ConfigError:
    return ConfigError(f"{key}: {file}: cannot be read: {err.strerror or err}")


def _message(found: Any) -> Message:
    if not isinstance(found, dict) or found.get("role") not in ROLES:
        raise BadRow(f"found {str(found)[:60]!r}; a message has a role of {', '.join(ROLES)}")
    return Message(role=found["role"], content=text_of(found, "content"))
