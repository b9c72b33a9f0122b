"""The steps of one row on its own, in their order; each may leave it out with a reason.

read, convert, thinking, length, quality. The steps over all rows are in `choice.py`.
Lengths come before anything that parses, so a row of 200k tokens costs one bounded tokenisation.

The quality of an answer is a heuristic, not a judgement: whether the kernel does the work is the
judge's question.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import xxhash

from forge.config.schema.build import DataBuild
from forge.data.answers import binds, jitted, parse
from forge.data.build.examples import Example, to_example
from forge.data.build.near import signature
from forge.data.build.output import LeftOutRow
from forge.data.chat import ChatTemplate
from forge.data.pairs.conversations import BadThinking, retag
from forge.data.pairs.rows import BadRow, Broken, Row, Unfit, is_unicode
from forge.data.prompts.prompt_set import PromptSet
from forge.data.sources.normal_form import digests_asked
from forge.errors import ConfigError
from forge.records import Message

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

    def __call__(self, row: Row, *, number: int, origin: str) -> Prepared | LeftOutRow:
        """The row after all steps. Never raises for what a row contains. `origin` is its file and
        place, `number` names a row without an id."""
        if isinstance(row, Broken):
            return LeftOutRow(origin=origin, step=Step.READ, reason=row.reason, detail=row.detail)
        step = Step.CONVERT
        try:
            example = to_example(row, number=number, build=self.build, prompts=self.prompts)
            if not _is_storable(example):
                raise Unfit("text that is no Unicode")
            messages = retag(
                example.messages, tag=self.prompts.thinking, mode=self.build.thinking.mode
            )
            example = replace(example, messages=messages)
            step = Step.LENGTH
            num_tokens = self._length(example.messages)
            step = Step.QUALITY
            tree = parse(example.code)
            self._check_quality(example, tree)
        except BadRow as error:
            return LeftOutRow(origin=origin, step=Step.READ, reason="broken row", detail=str(error))
        except Unfit as error:
            step = Step.THINKING if isinstance(error, BadThinking) else step
            return LeftOutRow(origin=origin, step=step, reason=str(error), detail=error.detail)
        return Prepared(
            origin=origin,
            example=example,
            num_tokens=num_tokens,
            exact=exact_hash(example.messages),
            module=signature(example.source, parse(example.source)),
            answer=signature(example.code, tree),
            digests=self._digests(example.messages),
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
                raise Unfit("too long", f"more than {filters.max_tokens} tokens")
        found = count_tokens(self.chat, messages)
        if found < filters.min_tokens:
            raise Unfit("too short", f"{found} tokens")
        if found > filters.max_tokens:
            raise Unfit("too long", f"{found} tokens")
        return found

    def _digests(self, messages: Sequence[Message]) -> tuple[str, ...]:
        return tuple(sorted(digests_asked(messages))) if self.build.heldout.paths else ()

    def _check_quality(self, example: Example, tree: ast.Module | None) -> None:
        if not self.build.filters.quality:
            return
        fault = find_fault(tree, answers_to=example.answers_to) if example.code else "without code"
        if fault is not None:
            raise Unfit(fault)


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
        raise Unfit("refused by the chat template", str(error)) from None


def _is_storable(example: Example) -> bool:
    texts: list[Any] = [example.problem_id, example.source, example.code]
    return all(is_unicode(text) for text in texts) and all(
        is_unicode(one.content) for one in example.messages
    )


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
