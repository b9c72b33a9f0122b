"""SFT rows from files: JSON, JSON lines or Parquet.

`read_pairs` is called while a run is prepared, in a thread, and reads conversations alone, in any
of the columns of `conversations.py`. A row that is none is an error, which names file and row; a
row that must not be trained on (a duplicate) is left out, counted by its reason, and shown at the
run's start. The other formats are read by `forge data build`.

`kernelbook`: a PyTorch module and the Triton code that torch.compile made from it. Columns used:
`entry_point`, the name of the module; `python_code`, which defines it with `get_inputs` and
`get_init_inputs`; `triton_code`, which defines `<entry_point>New`; `uuid`. The prompt is the same
as in a run, so the judge accepts what is trained.

`trinity`: PyTorch code, thinking and a Triton kernel. Columns used: `pytorch_code`,
`model_reasoning` or another field of thinking, `triton_code`, `result` with `correctness` and
`fast_0` (an object, or the same as JSON text), `sample_key`. Only correct kernels are trained. If
the kernel's entry point has another name than the judge's, the prompt asks for that name.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.data.answers import defines
from forge.data.pairs.conversations import conversation, retag, thinking_of, with_thinking
from forge.data.pairs.rows import (
    KEY,
    BadRow,
    LeftOut,
    Unfit,
    code_of,
    columns_of,
    is_unicode,
    row_files,
    rows_of,
    text_of,
)
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from forge.data.prompts.prompt_set import PromptSet

WRAPPER = "triton_kernel_wrapper"
"""Entry point of the benchmark that Trinity's traces come from."""


def kernelbook_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """One turn: the module, and its answer without thinking, which the data set lacks.

    Raises:
        BadRow: a column is missing.
        Unfit: the answer does not define `<entry_point>New`, which no judge accepts.
    """
    entry_point, code = text_of(row, "entry_point"), code_of(row, "triton_code")
    if not defines(code, f"{entry_point}New"):
        raise Unfit("without the class that a judge calls")
    problem = Problem(
        problem_id=f"kernelbook/{_id(row, 'uuid', number)}",
        source=code_of(row, "python_code"),
        family="kernelbook",
        level=1,
        split=Split.SFT,
        entry_point=entry_point,
    )
    return _pair(problem, prompts.first_messages(problem), answer_text(code, prompts=prompts))


def trinity_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """One turn: the module, the thinking if there is any, and the kernel.

    Raises:
        BadRow: a column is missing or no text, or `result` lacks `correctness`.
        Unfit: the kernel was not correct, or has no known entry point.
    """
    code = code_of(row, "triton_code")
    result = result_of(row.get("result"))
    if not (result["correctness"] is True and result.get("fast_0") is True):
        raise Unfit("with a wrong kernel")
    problem = Problem(
        problem_id=f"trinity/{_id(row, 'sample_key', number)}",
        source=code_of(row, "pytorch_code"),
        family="trinity",
        level=1,
        split=Split.SFT,
    )
    asked = prompts.first_messages(problem, answer_name=answer_name(code))
    return _pair(problem, asked, answer_text(code, thinking_of(row), prompts=prompts))


def answer_text(code: str, thoughts: Sequence[str] = (), *, prompts: PromptSet) -> str:
    """An answer in the form that prompts ask for: its thinking, then a fenced block. Raises
    BadThinking."""
    answer = f"```python\n{code.strip()}\n```"
    return with_thinking(answer, thoughts, tag=prompts.thinking)


def _id(row: Mapping[str, Any], name: str, number: int) -> str:
    """The value of a column, or else the row's number."""
    found = row.get(name)
    return str(number if found is None else found)


def _pair(problem: Problem, prompt: tuple[Message, ...], answer: str) -> Pair:
    messages = (*prompt, Message(role="assistant", content=answer))
    return Pair(problem_id=problem.problem_id, messages=messages, num_turns=1)


def answer_name(code: str) -> str:
    """The name that a trace's code defines. Raises Unfit if it is unknown."""
    if defines(code, "ModelNew"):
        return "ModelNew"
    if not defines(code, WRAPPER):
        raise Unfit(f"without ModelNew or {WRAPPER}")
    return WRAPPER


def result_of(value: Any) -> Mapping[str, Any]:
    """A result, also if it is JSON text. Raises BadRow if it says nothing about correctness."""
    found = parsed(value)
    if not isinstance(found, dict) or "correctness" not in found:
        raise BadRow(
            "result: found no correctness in it; it must hold the benchmark's result for the kernel"
        )
    return found


def parsed(value: Any) -> Any:
    """The value, or what it holds as JSON text; None for a text that is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


logger = logging.getLogger(__name__)


LEFT_OUT = "`forge data build` leaves such rows out, and lists them"
BUILT = {
    "kernelbook": {"python_code", "triton_code"},
    "trinity": {"pytorch_code", "triton_code"},
    "traces": {"pytorch_code", "turns"},
}
"""Columns of the formats that only a build reads."""


def built_format(row: Mapping[str, Any]) -> str | None:
    """The format of a build that has the columns of a row; None if it is none of `BUILT`."""
    return next((name for name, columns in BUILT.items() if columns <= row.keys()), None)


def messages_pair(row: Mapping[str, Any], *, number: int, prompts: PromptSet) -> Pair:
    """A row with a conversation. Its id is `id`, or the row's number. It keeps its own messages,
    whatever the prompts of the run."""
    if "messages" not in row and (format := built_format(row)):
        raise BadRow(
            f"found columns {columns_of(row)}, which are no conversation; `forge data build` with "
            f'input.format = "{format}" makes conversations of them'
        )
    messages = conversation(row, tag=prompts.thinking)
    num_turns = sum(message.role == "assistant" for message in messages)
    return Pair(problem_id=_id(row, "id", number), messages=messages, num_turns=num_turns)


def read_pairs(
    path: Path, *, prompts: PromptSet, key: str = KEY, say: Callable[[str], None] = logger.info
) -> list[Pair]:
    """The conversations of a file or directory in the order of the files, without duplicates, with
    the run's tag of thinking.

    Args:
        key: key that messages name.
        say: gets the number of rows, and what was left out and why.

    Raises:
        ConfigError: no such file, a row that does not match the format, or no row to train on.
        MachineError: a Parquet file, and pyarrow is missing.
    """
    pairs: dict[tuple[Message, ...], Pair] = {}
    left_out, bare = LeftOut(), LeftOut()
    for file in row_files(path, key=key):
        for number, row in enumerate(rows_of(file, key=key), start=1):
            place = f"{file.name}, row {number}"
            try:
                pair = messages_pair(row, number=number, prompts=prompts)
                messages = retag(pair.messages, tag=prompts.thinking)
                if not all(is_unicode(one.content) for one in messages):
                    raise Unfit("text that is no Unicode")
            except Unfit as reason:
                left_out.add(str(reason), place)
                continue
            except BadRow as err:
                advice = "" if built_format(row) else f"; {LEFT_OUT}"
                raise ConfigError(f"{key}: {file}, row {number}: {err}{advice}") from None
            if not prompts.thinking and messages != pair.messages:
                bare.add("trained without their thinking, as prompt.thinking is empty", place)
            if messages in pairs:
                left_out.add("the same again", place)
            pairs.setdefault(messages, replace(pair, messages=messages))
    if not pairs:
        raise ConfigError(f"{key}: {path}: no row to train on; left out: {left_out}")
    said = f"; {bare}" if bare.counts else ""
    say(f"{len(pairs)} rows from {path}; left out: {left_out}{said}")
    return list(pairs.values())
