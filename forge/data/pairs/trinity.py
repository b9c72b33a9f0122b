"""Reasoning traces in Trinity's format: PyTorch code, thinking and a Triton kernel.

Columns used: `pytorch_code`, `model_reasoning` or `thinking`, `triton_code`, `result` with
`correctness` and `fast_0` (an object, or the same as JSON text), `sample_key`. As in the recipe,
only correct kernels are trained, as `<think>…</think>` and `<triton>…</triton>`. If the kernel's
entry point has another name than the judge's, the prompt asks for that name.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from forge.data.pairs.rows import BadRow, Unfit, text_of
from forge.data.prompts import first_messages
from forge.records import Message, Pair, Problem, Split

if TYPE_CHECKING:
    from collections.abc import Mapping

WRAPPER = "triton_kernel_wrapper"
"""Entry point of the benchmark that the traces come from."""
THOUGHTS = ("model_reasoning", "thinking")
"""Columns with thinking; the first that is not empty counts."""


def trinity_pair(row: Mapping[str, Any], *, number: int) -> Pair:
    """One turn: the module, the thinking if there is any, and the kernel.

    Raises:
        BadRow: a column is missing or no text, or `result` lacks `correctness`.
        Unfit: the kernel was not correct, or has no known entry point.
    """
    code = text_of(row, "triton_code")
    if not _is_correct(row.get("result")):
        raise Unfit("with a wrong kernel")
    name = row.get("sample_key")
    problem = Problem(
        problem_id=f"trinity/{number if name is None else name}",
        source=text_of(row, "pytorch_code"),
        family="trinity",
        level=1,
        split=Split.SFT,
    )
    thought = next((name for name in THOUGHTS if row.get(name)), None)
    thinking = f"<think>\n{text_of(row, thought).strip()}\n</think>\n\n" if thought else ""
    content = f"{thinking}<triton>\n{code.strip()}\n</triton>"
    messages = (*_prompt(problem, code), Message(role="assistant", content=content))
    return Pair(problem_id=problem.problem_id, messages=messages, num_turns=1)


def _prompt(problem: Problem, code: str) -> tuple[Message, ...]:
    played = first_messages(problem)
    if re.search(r"^(?:class|def)[ \t]+ModelNew\b", code, flags=re.MULTILINE):
        return played
    if not re.search(rf"^def[ \t]+{WRAPPER}\b", code, flags=re.MULTILINE):
        raise Unfit(f"without ModelNew or {WRAPPER}")
    return (Message(role="system", content=f"Write {WRAPPER} with Triton."), *played[1:])


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
