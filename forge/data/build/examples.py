"""Rows of each format as examples: a module, a conversation that ends with the answer, its code.

The conversations are made by the readers of `forge/data/pairs/`, so a built file holds the same
prompts as a run that reads the data set itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.data.answers import extract
from forge.data.build.normalise import normalise_row, normalise_text
from forge.data.build.thinking import fold_reasoning
from forge.data.build.traces import single_pair, trace_pair
from forge.data.pairs.datasets import WRAPPER, Unfit, kernelbook_pair, text_of
from forge.data.pairs.files import messages_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.config.schema.build import DataBuild
    from forge.data.prompts.prompt_set import PromptSet
    from forge.records import Message, Pair

MAX_NAMES = 4
"""Entry points that are tried, the last ones of an answer: each takes a pass over it."""
_NEW = re.compile(r"^(?:class|def)[ \t]+(\w+)New\b", re.MULTILINE)
_FENCED = re.compile(r"^```[^\n`]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


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
            row["messages"] = fold_reasoning(row.get("messages"))
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
    is_wrapped = re.search(r"^(?:class|def)[ \t]+ModelNew\b", code, re.MULTILINE) is None
    return _example(
        pair, source=source, answers_to=WRAPPER if is_wrapped else "ModelNew", code=code
    )


def _conversation(pair: Pair) -> Example:
    asked = next((one.content for one in pair.messages if one.role == "user"), "")
    fenced = _FENCED.findall(asked)
    answers_to, code = _found_code(pair.messages[-1].content)
    return _example(pair, source=fenced[-1] if fenced else asked, answers_to=answers_to, code=code)


def _found_code(answer: str) -> tuple[str, str]:
    """The last candidate of an answer with the name of its entry point; both empty without one."""
    names = list(dict.fromkeys(_NEW.findall(answer)))[-MAX_NAMES:]
    for name in reversed(names):
        found = extract(answer, entry_point=name)
        if found.is_ok:
            return f"{name}New", found.code
    fenced = _FENCED.findall(answer)
    if fenced and re.search(rf"^def[ \t]+{WRAPPER}\b", fenced[-1], re.MULTILINE):
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
