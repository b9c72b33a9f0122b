"""Traces with results: which are good enough, and several attempts as one conversation.

A multi-turn trace has `turns`: thinking, `triton_code` and `result` of each attempt (`correctness`,
`error`, `speedup`, `fast_0` to `fast_2`), or the text `feedback_given`. The row ends with its best
attempt. Earlier attempts stand before it, each followed by the judge's message, in the words of
forge's own judge, so that a run continues as the row was trained.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.data.pairs.datasets import THOUGHTS, BadRow, Unfit, trinity_pair
from forge.records import Message, Pair, Reason, Status, Timing, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.data.prompts.prompt_set import PromptSet

PASSED = {"correctness": True, "fast_0": True}
"""Result given to `trinity_pair` for a kernel that `passes` has accepted."""
FAST = {"fast_1": lambda speedup: speedup > 1.0, "fast_2": lambda speedup: speedup >= 2.0}
_WRONG = re.compile(r"mismatch|incorrect|not close|not equal|differ|tolerance", re.IGNORECASE)
_COMPILE = re.compile(r"compil|syntax|indentation|invalid", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurn:
    """One turn of a trace."""

    thinking: str
    code: str
    result: Mapping[str, Any] | None
    feedback: str
    """The message that its teacher got; empty if unknown."""


def result_of(value: Any) -> Mapping[str, Any]:
    """A result, also if it is JSON text. Raises BadRow if it says nothing about correctness."""
    found = _parsed(value)
    if not isinstance(found, Mapping) or "correctness" not in found:
        raise BadRow(
            "result: found no correctness in it; it must hold the benchmark's result for the kernel"
        )
    return found


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
            THOUGHTS[0]: last.thinking, "sample_key": row.get("sample_key"),
        },
        number=number, prompts=prompts,
    )  # fmt: skip
    earlier = attempts[:best][-1 if prompts.attempts == "last" else 0 :]
    before = [message for each in earlier for message in _exchange(each, prompts)]
    messages = (*pair.messages[:-1], *before, pair.messages[-1])
    return replace(pair, messages=messages, num_turns=1 + len(before) // 2), last.code


def _attempts(row: Mapping[str, Any]) -> list[TraceTurn]:
    """Attempts with code, the one of the final columns last."""
    turns = _parsed(row.get("turns"))
    if not isinstance(turns, list):
        raise BadRow(f"turns: found {type(turns).__name__}; a list (columns: {', '.join(row)})")
    found: list[TraceTurn] = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise BadRow(f"turns: found {type(turn).__name__} in it; objects")
        if text := _text(turn, "triton_code"):
            result = _parsed(turn.get("result"))
            found.append(
                TraceTurn(
                    thinking=_text(turn, "reasoning", *THOUGHTS),
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
    return [*found, TraceTurn(thinking="", code=code, result=final, feedback="")]


def _exchange(attempt: TraceTurn, prompts: PromptSet) -> tuple[Message, Message]:
    thinking = prompts.thought(attempt.thinking.strip()) if attempt.thinking else ""
    answer = f"{thinking}<triton>\n{attempt.code.strip()}\n</triton>"
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


def _parsed(value: Any) -> Any:
    """The value, or what it holds as JSON text; None for a text that is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
