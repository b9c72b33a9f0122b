"""The steps of one row on its own, in their order; each may leave it out with a reason: read,
convert, thinking, length, quality. The steps over all rows are in `choice.py`. Lengths come before
anything that parses, so a row of 200k tokens costs one bounded tokenisation. The quality of an
answer is a heuristic: whether the kernel does the work is the judge's question.

Rows of each format become examples: a module, a conversation that ends with the answer, its code.

`messages`: a conversation in any of the columns of `forge/data/pairs/conversations.py`.

`trinity`: PyTorch code, thinking and a Triton kernel. Columns used: `pytorch_code`,
`model_reasoning` or another field of thinking, `triton_code`, `result` with `correctness` and
`fast_0` (an object, or the same as JSON text), `sample_key`. If the kernel's entry point has
another name than the judge's, the prompt asks for that name.

`traces`: several turns. `turns` has thinking, `triton_code` and `result` of each attempt
(`correctness`, `error`, `speedup`, `fast_0` to `fast_2`), or the text `feedback_given`. The row
ends with its best attempt. Earlier attempts stand before it, each followed by the judge's message,
in the words of forge's own judge, so that a run continues as the row was trained.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import xxhash

from forge.config.schema.build import DataBuild
from forge.data.answers import binds, defines, extract, fenced_blocks, jitted, parse
from forge.data.build.near import signature
from forge.data.build.output import LeftOutRow
from forge.data.chat import ChatTemplate
from forge.data.pairs import conversations, rows
from forge.data.prompts.prompt_set import PromptSet
from forge.data.sources.normal_form import digests_asked
from forge.errors import ConfigError
from forge.records import Message, Pair, Problem, Reason, Split, Status, Timing, Verdict

WRAPPER = "triton_kernel_wrapper"
"""Entry point of the benchmark that Trinity's traces come from."""
MAX_NAMES = 4
"""Entry points that are tried, the last ones of an answer: each takes a pass over it."""
_NEW = re.compile(r"^[ \t]*+(?:class[ \t]+|def[ \t]+)?(\w+)New\b", re.MULTILINE)

_INDENT = re.compile(r"^[ \t]*\t[ \t]*", re.MULTILINE)
_SPACES = re.compile(r"^ +\S", re.MULTILINE)
TAB = 4
"""Columns of a tab where only tabs indent."""
PYTHON_TAB = 8
"""Columns of a tab beside spaces, as Python counts them: the meaning of the source stays."""
MAX_DEPTH = 16
"""Maximum nesting of a row that is normalised."""


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
    row: Mapping[str, Any], *, number: int, build: DataBuild, prompts: PromptSet
) -> Example:
    """A row of `build.input.format`; its number among all rows names one without an id. Raises
    BadRow for another format, Unfit for a row that must not be trained on."""
    row = {str(name): _normalise(value, MAX_DEPTH) for name, value in row.items()}
    match build.input.format:
        case "messages":
            found = _conversation(conversations.messages_pair(row, number=number, prompts=prompts))
        case "trinity":
            code, result = rows.code_of(row, "triton_code"), result_of(row.get("result"))
            only = TraceTurn(thoughts=conversations.thinking_of(row), code=code, result=result)
            found = _trace(row, number, [only], build.filters.result, prompts)
        case "traces":
            found = _trace(row, number, _attempts(row), build.filters.result, prompts)
    # Texts that were JSON inside a column have not been normalised yet.
    messages = tuple(replace(one, content=normalise_text(one.content)) for one in found.messages)
    return replace(found, messages=messages, code=normalise_text(found.code))


def _trace(
    row: Mapping[str, Any], number: int, attempts: Sequence[TraceTurn], wanted: str,
    prompts: PromptSet,
) -> Example:  # fmt: skip
    """A conversation that ends with the best attempt. Raises Unfit if none is good enough."""
    good = [
        (speedup_of(each.result) or 0.0, -index)
        for index, each in enumerate(attempts)
        if each.result is not None and passes(each.result, wanted=wanted)
    ]
    if not good:
        raise rows.Unfit(f"result below {wanted}")
    best = -max(good)[1]
    first = max(best - 1, 0) if prompts.attempts == "last" else 0
    *earlier, last = attempts[first : best + 1]
    problem = Problem(
        problem_id=f"trinity/{conversations.id_of(row, 'sample_key', number)}",
        source=rows.code_of(row, "pytorch_code"), family="trinity", level=1, split=Split.SFT,
    )  # fmt: skip
    name = _answer_name(last.code)
    messages = [*prompts.first_messages(problem, answer_name=name)]
    for each in earlier:
        told = Message(role="user", content=each.feedback or "no result")  # by the teacher
        if each.result is not None:
            told = prompts.feedback_message(verdict_of(each.result))
        messages += [_answer(each.code, each.thoughts, prompts), told]
    messages.append(_answer(last.code, last.thoughts, prompts))
    return Example(
        problem_id=problem.problem_id, source=problem.source, answers_to=name,
        messages=tuple(messages), num_turns=1 + len(earlier), code=last.code,
    )  # fmt: skip


def _answer(code: str, thoughts: Sequence[str], prompts: PromptSet) -> Message:
    """An answer in the form that prompts ask for: its thinking, then a fenced block."""
    content = conversations.with_thinking(
        f"```python\n{code.strip()}\n```", thoughts, tag=prompts.thinking
    )
    return Message(role="assistant", content=content)


def _answer_name(code: str) -> str:
    """The name that a trace's code defines. Raises Unfit if it is unknown."""
    if defines(code, "ModelNew"):
        return "ModelNew"
    if not defines(code, WRAPPER):
        raise rows.Unfit(f"without ModelNew or {WRAPPER}")
    return WRAPPER


def _conversation(pair: Pair) -> Example:
    asked = next((one.content for one in pair.messages if one.role == "user"), "")
    fenced = [one.code for one in fenced_blocks(asked)]
    answers_to, code = _found_code(pair.messages[-1].content)
    return Example(
        problem_id=pair.problem_id, source=fenced[-1] if fenced else asked, answers_to=answers_to,
        messages=pair.messages, num_turns=pair.num_turns, code=code,
    )  # fmt: skip


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


FAST = {"fast_1": lambda speedup: speedup > 1.0, "fast_2": lambda speedup: speedup >= 2.0}
_WRONG = re.compile(r"mismatch|incorrect|not close|not equal|differ|tolerance", re.IGNORECASE)
_COMPILE = re.compile(r"compil|syntax|indentation|invalid", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurn:
    thoughts: Sequence[str]
    code: str
    result: Mapping[str, Any] | None
    feedback: str = ""
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
    found = result.get("speedup")
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return float(found) if math.isfinite(found) else None


def result_of(value: Any) -> Mapping[str, Any]:
    """A result, also if it is JSON text. Raises BadRow if it says nothing about correctness."""
    found = _parsed(value)
    if not isinstance(found, dict) or "correctness" not in found:
        raise rows.BadRow(
            "result: found no correctness in it; it must hold the benchmark's result for the kernel"
        )
    return found


def _parsed(value: Any) -> Any:
    """The value, or what it holds as JSON text; None for a text that is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _attempts(row: Mapping[str, Any]) -> list[TraceTurn]:
    """Attempts with code, the one of the final columns last."""
    turns = _parsed(row.get("turns"))
    if not isinstance(turns, list):
        raise rows.BadRow(
            f"turns: found {rows.kind_of(turns)}; a list (columns here: {rows.columns_of(row)})"
        )
    found: list[TraceTurn] = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise rows.BadRow(f"turns: found {type(turn).__name__} in it; objects")
        if code := _text(turn, "triton_code"):
            result = _parsed(turn.get("result"))
            result = result if isinstance(result, Mapping) else None
            words = _text(turn, "feedback_given", "feedback")
            thoughts = conversations.thinking_of(turn)
            found.append(TraceTurn(thoughts=thoughts, code=code, result=result, feedback=words))
    if not (code := _text(row, "final_triton_code")):
        return found
    final = result_of(row.get("final_result"))
    same = (index for index, each in enumerate(found) if each.code.strip() == code.strip())
    if (index := next(same, None)) is None:
        return [*found, TraceTurn(thoughts=(), code=code, result=final)]
    found[index] = replace(found[index], result=found[index].result or final)
    return found


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


def normalise_text(text: str) -> str:
    """The text with `\\n` line ends, without byte order mark, indented by spaces."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\t" not in text:
        return text
    width = PYTHON_TAB if _SPACES.search(text) else TAB
    return _INDENT.sub(lambda found: found[0].expandtabs(width), text)


def _normalise(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return normalise_text(value)
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        return {k: _normalise(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_normalise(each, depth - 1) for each in value]
    return value


CHARACTERS_PER_TOKEN = 8
"""A longer text, per allowed token, is first tokenised up to this length only."""


class Step(StrEnum):
    """The steps in their order."""

    READ = "read"
    """The row is an object in JSON or Parquet, and matches the format."""
    CONVERT = "convert"
    """The columns become a conversation."""
    THINKING = "thinking"
    """Thinking gets one pair of tags."""
    LENGTH = "length"
    """Tokens are counted."""
    QUALITY = "quality"
    """The answer is Python with a kernel."""
    EXACT = "exact duplicates"
    """The same conversation occurs once."""
    CONTAMINATION = "contamination"
    """No module is similar to a held-out problem."""
    JUDGED = "judged"
    """The answer is correct."""
    NEAR = "near-duplicates"
    """Similar modules with similar answers occur once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A row that passed the steps of its own."""

    origin: str
    example: Example
    num_tokens: int | None
    exact: int
    """Hash of the conversation."""
    module: np.ndarray
    """Signature of the module. [PERMUTATIONS]"""
    answer: np.ndarray
    """Signature of the answer's code. [PERMUTATIONS]"""
    digests: tuple[str, ...] = ()
    """Normal forms of the code that the conversation asks for; empty without `heldout.paths`."""

    def to_json(self) -> dict[str, Any]:
        """Its texts, which wait on disk for the choice among all rows."""
        example = self.example
        return {
            "origin": self.origin, "id": example.problem_id,
            "messages": [asdict(message) for message in example.messages],
            "num_turns": example.num_turns, "num_tokens": self.num_tokens,
            "source": example.source, "entry_point": example.entry_point, "code": example.code,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSteps:
    """The steps with their settings. Pure: the same row has the same outcome in every process."""

    build: DataBuild
    prompts: PromptSet
    chat: ChatTemplate | None
    """The trained model's template; None without `filters.length`."""

    def __call__(self, row: rows.Row, *, number: int, origin: str) -> Prepared | LeftOutRow:
        """The row after all steps. Never raises for what a row contains. `origin` is its file and
        place, `number` names a row without an id."""
        if isinstance(row, rows.Broken):
            return LeftOutRow(origin=origin, step=Step.READ, reason=row.reason, detail=row.detail)
        step = Step.CONVERT
        try:
            example = to_example(row, number=number, build=self.build, prompts=self.prompts)
            texts = [example.problem_id, example.source, example.code]
            texts += [one.content for one in example.messages]
            if not all(map(rows.is_unicode, texts)):
                raise rows.Unfit("text that is no Unicode")
            messages = conversations.retag(
                example.messages, tag=self.prompts.thinking, mode=self.build.thinking.mode
            )
            example = replace(example, messages=messages)
            step = Step.LENGTH
            num_tokens = self._length(example.messages)
            step = Step.QUALITY
            tree = parse(example.code)
            if self.build.filters.quality:
                if not example.code:
                    raise rows.Unfit("without code")
                if fault := find_fault(tree, answers_to=example.answers_to):
                    raise rows.Unfit(fault)
        except rows.BadRow as error:
            return LeftOutRow(origin=origin, step=Step.READ, reason="broken row", detail=str(error))
        except rows.Unfit as error:
            step = Step.THINKING if isinstance(error, conversations.BadThinking) else step
            return LeftOutRow(origin=origin, step=step, reason=str(error), detail=error.detail)
        asked = digests_asked(example.messages) if self.build.heldout.paths else ()
        return Prepared(
            origin=origin,
            example=example,
            num_tokens=num_tokens,
            exact=exact_hash(example.messages),
            module=signature(example.source, parse(example.source)),
            answer=signature(example.code, tree),
            digests=tuple(sorted(asked)),
        )

    def _length(self, messages: Sequence[Message]) -> int | None:
        """Number of tokens. Raises Unfit."""
        if self.chat is None:
            return None
        filters = self.build.filters
        at_most = filters.max_tokens * CHARACTERS_PER_TOKEN
        if sum(len(one.content) for one in messages) > at_most:
            head = self.chat.tokenizer.encode_batch_fast([_head(messages, at_most)])
            if len(head[0]) > filters.max_tokens:
                raise rows.Unfit("too long", f"more than {filters.max_tokens} tokens")
        found = count_tokens(self.chat, messages)
        if found < filters.min_tokens:
            raise rows.Unfit("too short", f"{found} tokens")
        if found > filters.max_tokens:
            raise rows.Unfit("too long", f"{found} tokens")
        return found


def exact_hash(messages: Sequence[Message]) -> int:
    """Hash of a conversation. [128 bits]"""
    hasher = xxhash.xxh3_128()
    for message in messages:
        for text in (message.role, message.content):
            data = text.encode()
            hasher.update(len(data).to_bytes(8, "little"))
            hasher.update(data)
    return hasher.intdigest()


def _head(messages: Sequence[Message], at_most: int) -> str:
    """The first characters of all messages, without copies of what follows."""
    parts: list[str] = []
    for message in messages:
        parts.append(message.content[:at_most])
        at_most -= len(parts[-1])
    return "\n".join(parts)


def count_tokens(chat: ChatTemplate, messages: Sequence[Message]) -> int:
    """Length of a conversation in tokens. Raises Unfit if the chat template refuses it."""
    try:
        return chat.count_tokens(messages)
    except ConfigError as error:
        raise rows.Unfit("refused by the chat template", str(error)) from None


def find_fault(tree: ast.Module | None, *, answers_to: str) -> str | None:
    """The first reason against an answer; None for a good one."""
    if tree is None:
        return "no Python"
    if not answers_to or not binds(tree, answers_to):
        return "without the entry point"
    kernels = jitted(tree)
    if not kernels:
        return "without a Triton kernel"
    return None if _is_launched(tree, kernels) else "kernel never launched"


def _is_launched(tree: ast.Module, kernels: Sequence[ast.FunctionDef]) -> bool:
    """True if a kernel's name is used outside of kernels: `kernel[grid]`, `kernel.run`, or as an
    argument."""
    names = {one.name for one in kernels}
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if node in kernels:
            continue
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Attribute) and node.attr in names:
            return True
        stack.extend(ast.iter_child_nodes(node))
    return False
