"""Rows of public data sets as SFT rows, and the errors of a row.

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
import re
from typing import TYPE_CHECKING, Any

from forge.records import Message, Pair, Problem, Split

if TYPE_CHECKING:
    from collections.abc import Mapping

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
