"""SFT rows from files: JSON, JSON lines or Parquet, in one of the formats of `data.format`.

Called while a run is prepared, in a thread. A row that does not match the format is an error, which
names file and row; a row that must not be trained on (a wrong kernel, a duplicate) is left out and
counted in the log.

`kernelbook`: a PyTorch module and the Triton code that torch.compile made from it. Columns used:
`entry_point`, the name of the module; `python_code`, which defines it with `get_inputs` and
`get_init_inputs`; `triton_code`, which defines `<entry_point>New`; `uuid`. The prompt is the same
as in a run, so the judge accepts what is trained.

`trinity`: PyTorch code, thinking and a Triton kernel. Columns used: `pytorch_code`,
`model_reasoning` or `thinking`, `triton_code`, `result` with `correctness` and `fast_0` (an object,
or the same as JSON text), `sample_key`. As in the recipe, only correct kernels are trained, as
`<think>…</think>` and `<triton>…</triton>`. If the kernel's entry point has another name than the
judge's, the prompt asks for that name.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError, MachineError, pip_install
from forge.records import Message, Pair, Problem, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from forge.config.schema import DataTable
    from forge.data.prompts.prompt_set import PromptSet

WRAPPER = "triton_kernel_wrapper"
"""Entry point of the benchmark that Trinity's traces come from."""
THOUGHTS = ("model_reasoning", "thinking")
"""Columns with thinking; the first that is not empty counts."""


class BadRow(ValueError):
    """A row that does not match the format; the message says what was found and what is allowed."""


class Unfit(ValueError):
    """A row that matches the format but must not be trained on; the message is the reason."""


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A text field of a row. Raises BadRow if it is missing or no text."""
    found = row.get(name)
    if not isinstance(found, str):
        has = "nothing" if found is None else type(found).__name__
        raise BadRow(f"{name}: found {has}; a text (columns here: {', '.join(map(str, row))})")
    return found


def code_of(row: Mapping[str, Any], name: str) -> str:
    """A field with source code, with Unix line ends. Raises BadRow as `text_of`, and Unfit if it is
    empty."""
    code = text_of(row, name).replace("\r\n", "\n")
    if not code.strip():
        raise Unfit(f"without code in {name}")
    return code


def kernelbook_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """One turn: the module, and its answer without thinking, which the data set lacks.

    Raises:
        BadRow: a column is missing.
        Unfit: the answer does not define `<entry_point>New`, which no judge accepts.
    """
    entry_point, code = text_of(row, "entry_point"), code_of(row, "triton_code")
    if not re.search(rf"^class[ \t]+{re.escape(entry_point)}New\b", code, flags=re.MULTILINE):
        raise Unfit("without the class that a judge calls")
    name = row.get("uuid")
    problem = Problem(
        problem_id=f"kernelbook/{number if name is None else name}",
        source=code_of(row, "python_code"),
        family="kernelbook",
        level=1,
        split=Split.SFT,
        entry_point=entry_point,
    )
    return _pair(problem, prompts.first_messages(problem), f"```python\n{code.strip()}\n```")


def trinity_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """One turn: the module, the thinking if there is any, and the kernel.

    Raises:
        BadRow: a column is missing or no text, or `result` lacks `correctness`.
        Unfit: the kernel was not correct, or has no known entry point.
    """
    code = code_of(row, "triton_code")
    if not _is_correct(row.get("result")):
        raise Unfit("with a wrong kernel")
    name = row.get("sample_key")
    problem = Problem(
        problem_id=f"trinity/{number if name is None else name}",
        source=code_of(row, "pytorch_code"),
        family="trinity",
        level=1,
        split=Split.SFT,
    )
    thought = next((name for name in THOUGHTS if row.get(name)), None)
    thinking = prompts.thought(text_of(row, thought).strip()) if thought else ""
    asked = prompts.first_messages(problem, answer_name=_answer_name(code))
    return _pair(problem, asked, f"{thinking}<triton>\n{code.strip()}\n</triton>")


def _pair(problem: Problem, prompt: tuple[Message, ...], answer: str) -> Pair:
    messages = (*prompt, Message(role="assistant", content=answer))
    return Pair(problem_id=problem.problem_id, messages=messages, num_turns=1)


def _answer_name(code: str) -> str:
    if re.search(r"^(?:class|def)[ \t]+ModelNew\b", code, flags=re.MULTILINE):
        return "ModelNew"
    if not re.search(rf"^def[ \t]+{WRAPPER}\b", code, flags=re.MULTILINE):
        raise Unfit(f"without ModelNew or {WRAPPER}")
    return WRAPPER


def _is_correct(result: Any) -> bool:
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            result = None
    if not isinstance(result, dict) or "correctness" not in result:
        raise BadRow(
            "result: found no correctness in it; it must hold the benchmark's result for the kernel"
        )
    return result["correctness"] is True and result.get("fast_0") is True


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
