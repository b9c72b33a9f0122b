"""Rows of each format as examples: a module, a conversation that ends with the answer, its code.

The conversations are made by the readers of `forge/data/pairs/`, so a built file holds the same
prompts as a run that reads the data set itself.

A multi-turn trace has `turns`: thinking, `triton_code` and `result` of each attempt (`correctness`,
`error`, `speedup`, `fast_0` to `fast_2`), or the text `feedback_given`. The row ends with its best
attempt. Earlier attempts stand before it, each followed by the judge's message, in the words of
forge's own judge, so that a run continues as the row was trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.data.answers import defines, extract, fenced_blocks
from forge.data.build.rows import normalise_row, normalise_text
from forge.data.pairs.conversations import THOUGHTS, thinking_of
from forge.data.pairs.files import (
    WRAPPER,
    answer_name,
    answer_text,
    kernelbook_pair,
    messages_pair,
    parsed,
    result_of,
    trinity_pair,
)
from forge.data.pairs.rows import BadRow, Unfit, text_of
from forge.records import Message, Pair, Reason, Status, Timing, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.config.schema.build import DataBuild
    from forge.data.prompts.prompt_set import PromptSet

MAX_NAMES = 4
"""Entry points that are tried, the last ones of an answer: each takes a pass over it."""
_NEW = re.compile(r"^[ \t]*+(?:class[ \t]+|def[ \t]+)?(\w+)New\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One row on its way to a training row."""

    problem_id: str
    source: str
    """The module to be matched; for messages, the first one of the user."""
    answers_to: str
    """Name of the class or function that the answer has to define; empty if it has none."""
    messages: tuple[Message, ...]
    num_turns: int
    code: str
    """Code of the last answer; empty if it has none."""

    @property
    def entry_point(self) -> str:
        """Name of the module, for a judge."""
        return self.answers_to.removesuffix("New") if self.answers_to.endswith("New") else "Model"


def to_example(
    row: Mapping[str, Any],
    *,
    number: int,
    build: DataBuild,
    prompts: PromptSet,
    rewrite: Callable[[str, str], str] | None = None,
) -> Example:
    """A row of `build.input.format`.

    Args:
        number: the row's number among all rows, which names a row without an id.
        rewrite: makes a plain module of Inductor's code, given it and its entry point.

    Raises:
        BadRow: the row does not match the format.
        Unfit: it must not be trained on.
    """
    row = normalise_row(row)
    match build.input.format:
        case "kernelbook":
            found = _kernelbook(row, number, prompts, rewrite)
        case "messages":
            found = _conversation(messages_pair(row, number=number, prompts=prompts))
        case "trinity":
            pair = single_pair(row, number=number, wanted=build.filters.result, prompts=prompts)
            found = _trace(pair, row, text_of(row, "triton_code"))
        case "traces":
            pair, code = trace_pair(
                row, number=number, wanted=build.filters.result, prompts=prompts
            )
            found = _trace(pair, row, code)
    # Texts that were JSON inside a column have not been normalised yet.
    messages = tuple(replace(one, content=normalise_text(one.content)) for one in found.messages)
    return replace(found, messages=messages, code=normalise_text(found.code))


def _kernelbook(
    row: dict[str, Any], number: int, prompts: PromptSet, rewrite: Callable[[str, str], str] | None
) -> Example:
    entry_point = text_of(row, "entry_point")
    if rewrite is not None:
        row["triton_code"] = rewrite(text_of(row, "triton_code"), entry_point)
    pair = kernelbook_pair(row, number=number, prompts=prompts)
    source, code = text_of(row, "python_code"), text_of(row, "triton_code")
    if not source.strip():
        raise Unfit("without code")
    return _example(pair, source=source, answers_to=f"{entry_point}New", code=code)


def _trace(pair: Pair, row: Mapping[str, Any], code: str) -> Example:
    source = text_of(row, "pytorch_code")
    if not source.strip() or not code.strip():
        raise Unfit("without code")
    return _example(pair, source=source, answers_to=answer_name(code), code=code)


def _conversation(pair: Pair) -> Example:
    asked = next((one.content for one in pair.messages if one.role == "user"), "")
    fenced = [one.code for one in fenced_blocks(asked)]
    answers_to, code = _found_code(pair.messages[-1].content)
    return _example(pair, source=fenced[-1] if fenced else asked, answers_to=answers_to, code=code)


def _found_code(answer: str) -> tuple[str, str]:
    """The last candidate of an answer with the name of its entry point; both empty without one."""
    names = list(dict.fromkeys(_NEW.findall(answer)))[-MAX_NAMES:]
    for name in reversed(names):
        found = extract(answer, entry_point=name)
        if found.is_ok:
            return f"{name}New", found.code
    fenced = [one.code for one in fenced_blocks(answer)]
    if fenced and defines(fenced[-1], WRAPPER):
        return WRAPPER, fenced[-1]
    return "", fenced[-1] if fenced else ""


def _example(pair: Pair, *, source: str, answers_to: str, code: str) -> Example:
    return Example(
        problem_id=pair.problem_id,
        source=source,
        answers_to=answers_to,
        messages=pair.messages,
        num_turns=pair.num_turns,
        code=code,
    )


PASSED = {"correctness": True, "fast_0": True}
"""Result given to `trinity_pair` for a kernel that `passes` has accepted."""
FAST = {"fast_1": lambda speedup: speedup > 1.0, "fast_2": lambda speedup: speedup >= 2.0}
_WRONG = re.compile(r"mismatch|incorrect|not close|not equal|differ|tolerance", re.IGNORECASE)
_COMPILE = re.compile(r"compil|syntax|indentation|invalid", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurn:
    """One turn of a trace."""

    thoughts: Sequence[str]
    code: str
    result: Mapping[str, Any] | None
    feedback: str
    """The message that its teacher got; empty if unknown."""


def passes(result: Mapping[str, Any], *, wanted: str) -> bool:
    """True for a result of at least `filters.result`."""
    if result.get("correctness") is not True:
        return False
    if wanted == "correctness":
        return True
    if wanted == "fast_0":
        return result.get("fast_0") is not False
    speedup = speedup_of(result)
    return result.get(wanted) is True if speedup is None else FAST[wanted](speedup)


def speedup_of(result: Mapping[str, Any]) -> float | None:
    """Its speed-up; None if there is none."""
    found = result.get("speedup")
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) else None


def single_pair(row: Mapping[str, Any], *, number: int, wanted: str, prompts: PromptSet) -> Pair:
    """A trace of one turn. Raises BadRow, and Unfit if its result is not good enough."""
    if not passes(result_of(row.get("result")), wanted=wanted):
        raise Unfit(f"result below {wanted}")
    return trinity_pair({**row, "result": PASSED}, number=number, prompts=prompts)


def trace_pair(
    row: Mapping[str, Any], *, number: int, wanted: str, prompts: PromptSet
) -> tuple[Pair, str]:
    """A trace of several turns, and the code of its last attempt.

    Raises:
        BadRow: a column is missing, or of another kind.
        Unfit: no attempt is good enough.
    """
    attempts = _attempts(row)
    good = [
        (speedup_of(each.result) or 0.0, -index)
        for index, each in enumerate(attempts)
        if each.result is not None and passes(each.result, wanted=wanted)
    ]
    if not good:
        raise Unfit(f"result below {wanted}")
    best = -max(good)[1]
    last = attempts[best]
    pair = trinity_pair(
        {
            "pytorch_code": row.get("pytorch_code"), "triton_code": last.code, "result": PASSED,
            "sample_key": row.get("sample_key"), **dict(zip(THOUGHTS, last.thoughts, strict=False)),
        },
        number=number, prompts=prompts,
    )  # fmt: skip
    earlier = attempts[:best][-1 if prompts.attempts == "last" else 0 :]
    before = [message for each in earlier for message in _exchange(each, prompts)]
    messages = (*pair.messages[:-1], *before, pair.messages[-1])
    return replace(pair, messages=messages, num_turns=1 + len(before) // 2), last.code


def _attempts(row: Mapping[str, Any]) -> list[TraceTurn]:
    """Attempts with code, the one of the final columns last."""
    turns = parsed(row.get("turns"))
    if not isinstance(turns, list):
        raise BadRow(f"turns: found {type(turns).__name__}; a list (columns: {', '.join(row)})")
    found: list[TraceTurn] = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise BadRow(f"turns: found {type(turn).__name__} in it; objects")
        if text := _text(turn, "triton_code"):
            result = parsed(turn.get("result"))
            found.append(
                TraceTurn(
                    thoughts=thinking_of(turn),
                    code=text,
                    result=result if isinstance(result, Mapping) else None,
                    feedback=_text(turn, "feedback_given", "feedback"),
                )
            )
    return _with_final(row, found)


def _with_final(row: Mapping[str, Any], attempts: Sequence[TraceTurn]) -> list[TraceTurn]:
    """The attempts, the last one with the row's own final result if it is about that code."""
    found, code = list(attempts), row.get("final_triton_code")
    if not isinstance(code, str) or not code.strip():
        return found
    final = result_of(row.get("final_result"))
    for index, each in enumerate(found):
        if each.code.strip() == code.strip():
            found[index] = replace(each, result=each.result or final)
            return found
    return [*found, TraceTurn(thoughts=(), code=code, result=final, feedback="")]


def _exchange(attempt: TraceTurn, prompts: PromptSet) -> tuple[Message, Message]:
    answer = answer_text(attempt.code, attempt.thoughts, prompts=prompts)
    return Message(role="assistant", content=answer), _words(attempt, prompts)


def _words(attempt: TraceTurn, prompts: PromptSet) -> Message:
    """The judge's message about an attempt; the teacher's if there is no result."""
    if attempt.result is None:
        return Message(role="user", content=attempt.feedback or "no result")
    return prompts.feedback_message(verdict_of(attempt.result))


def verdict_of(result: Mapping[str, Any]) -> Verdict:
    """The verdict that says what a result says."""
    speedup = speedup_of(result)
    if result.get("correctness") is True:
        return Verdict(
            status=Status.CORRECT, reason=Reason.OK, detail="", timing=_timing(result, speedup)
        )
    error = result.get("error")
    detail = error if isinstance(error, str) else ""
    status, reason = Status.RUNTIME_ERROR, Reason.EXCEPTION
    if not detail or _WRONG.search(detail):
        status, reason = Status.WRONG, Reason.MISMATCH
    elif _COMPILE.search(detail):
        status, reason = Status.COMPILE_ERROR, Reason.NOT_TRITON
    return Verdict(status=status, reason=reason, detail=detail)


def _timing(result: Mapping[str, Any], speedup: float | None) -> Timing | None:
    times = [result.get("kernel_time_ms"), result.get("reference_time_ms")]
    if speedup is None or not all(isinstance(each, int | float) for each in times):
        return None
    candidate_us, baseline_us = (1000.0 * float(each) for each in times if each is not None)
    return Timing(
        speedup=speedup, speedup_low=speedup, candidate_us=candidate_us, baseline_us=baseline_us,
        candidate_spread_us=0.0, baseline_spread_us=0.0,
    )  # fmt: skip


def _text(turn: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is a text and not empty; else the empty text."""
    found = (turn.get(name) for name in names)
    return next((each for each in found if isinstance(each, str) and each.strip()), "")
