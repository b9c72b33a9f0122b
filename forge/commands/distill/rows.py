"""The row of a finished attempt.

`messages` (accepted attempts only), `id`: read by `[data] source = "file"`, format = "messages".
`sample_key`, `source`, `pytorch_code`, `num_turns`, `stop_reason`, `final_triton_code`,
`final_result`, `turns`, `full_messages`: columns of published multi-turn traces; a time that was
not measured is null. The other columns say where the row comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forge.data.plain_chat import split_thinking
from forge.records import End, Finish, Message

if TYPE_CHECKING:
    from forge.commands.distill.attempt import Played
    from forge.commands.distill.journal import StoredAnswer
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Problem, Turn, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """The place of an attempt, and its teacher."""

    key: str
    attempt: int
    source: str
    model: str
    prompt_hash: str
    """Hash of the first messages about the problem."""
    prompts: PromptSet


def make_row(problem: Problem, played: Played, origin: RowOrigin) -> dict[str, Any]:
    """The row. It is accepted if the last kernel is correct and fast enough, and the answer
    complete."""
    tag = origin.prompts.thinking
    last, answer = played.turns[-1], played.answers[-1].answer
    is_ended = answer.finish is Finish.STOP
    accepted = played.stop_reason == End.CORRECT and is_ended
    timing = last.verdict.timing
    messages = [asdict(message) for message in _conversation(problem, played.turns, origin.prompts)]
    row: dict[str, Any] = {"id": origin.key, "messages": messages} if accepted else {}
    return row | {
        "sample_key": origin.key,
        "source": origin.source,
        "problem_id": problem.problem_id,
        "attempt": origin.attempt,
        "teacher": origin.model,
        "endpoint": played.answers[-1].host,
        "accepted": accepted,
        "status": str(last.verdict.status),
        "reason": last.verdict.reason,
        "speedup": None if timing is None else timing.speedup,
        "speedup_low": None if timing is None else timing.speedup_low,
        "device": last.verdict.device,
        "stop_reason": played.stop_reason,
        "finish": str(answer.finish),
        "num_turns": len(played.turns),
        "thinking": any(split_thinking(turn.completion_text, tag=tag)[0] for turn in played.turns),
        "prompt_tokens": _sum([each.answer.prompt_tokens for each in played.answers]),
        "completion_tokens": _sum([each.answer.completion_tokens for each in played.answers]),
        "prompt_hash": origin.prompt_hash,
        "pytorch_code": problem.source,
        "final_triton_code": last.code or None,
        "final_result": _result(last.verdict),
        "turns": [
            _turn(turn, stored, tag=tag)
            for turn, stored in zip(played.turns, played.answers, strict=True)
        ],
        "full_messages": messages,
    }  # fmt: skip


def _conversation(problem: Problem, turns: Sequence[Turn], prompts: PromptSet) -> list[Message]:
    """The first messages, then each answer with its thinking, and the feedback between two."""
    messages = [*prompts.first_messages(problem)]
    for turn in turns:
        messages.append(Message(role="assistant", content=turn.completion_text))
        messages.append(Message(role="user", content=turn.feedback))
    return messages[:-1]


def _turn(turn: Turn, stored: StoredAnswer, *, tag: str) -> dict[str, Any]:
    thinking, content = split_thinking(turn.completion_text, tag=tag)
    return {
        "turn": turn.turn + 1,
        "reasoning": thinking,
        "content": content,
        "triton_code": turn.code or None,
        "status": str(turn.verdict.status),
        "reason": turn.verdict.reason,
        "result": _result(turn.verdict),
        "feedback": turn.feedback,
        "finish": str(stored.answer.finish),
        "prompt_tokens": stored.answer.prompt_tokens,
        "completion_tokens": stored.answer.completion_tokens,
    }


def _result(verdict: Verdict) -> dict[str, Any]:
    """The verdict in the columns of the published traces."""
    timing = verdict.timing
    speedup = None if timing is None else timing.speedup
    return {
        "correctness": verdict.is_correct,
        "error": None if verdict.is_correct else verdict.detail,
        "speedup": speedup,
        "kernel_time_ms": None if timing is None else timing.candidate_us / 1000,
        "reference_time_ms": None if timing is None else timing.baseline_us / 1000,
        "fast_0": verdict.is_correct,
        "fast_1": None if speedup is None else speedup > 1.0,
        "fast_2": None if speedup is None else speedup >= 2.0,
    }


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None if the server did not count one of them."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
