"""The prompts of a run: templates with their settings, made once and used for everything.

    first_messages    the system and the user message at the start of every conversation
    feedback_message  the message about a verdict
    conversation      both, around the model's attempts

A set is plain data: `to_json` goes into the run's events, and `from_json` gives a set that writes
the same bytes, wherever the template files are by then. Its hash names it in each turn.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forge.data.prompts.feedback import report
from forge.data.prompts.templates import RUN_NAMES, render, used_names
from forge.records import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forge.data.prompts.conversation import Exchange
    from forge.records import Problem, Verdict
    from forge.records.problem import ReferenceModule

HASH_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Templates, and the values that they may use. Made by `loading.make_prompts`."""

    preset: str
    templates: Mapping[str, str]
    """Source of each template, by kind: system, first, feedback."""
    values: Mapping[str, Any]
    """Values of the run by name, of those alone that some template uses."""
    tolerances: Mapping[str, float]
    """Tolerance by a problem's precision; empty if no template uses it."""
    thinking: str = "think"
    """Tag of a model's thinking; empty for none."""
    attempts: str = "all"
    """Earlier attempts in a conversation: `all`, or the `last` one alone."""
    has_baseline: bool = True
    """True to state the reference's time and the share of the roofline."""
    max_chars: int
    """Maximum length of the detail in a report."""

    @cached_property
    def hash(self) -> str:
        """12 hex digits that name these templates and settings."""
        text = json.dumps({**self.to_json(), "preset": ""}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]

    def first_messages(
        self, problem: ReferenceModule, *, answer_name: str = ""
    ) -> tuple[Message, ...]:
        """The messages at the start of every conversation about a problem.

        Args:
            answer_name: Name that the answer has to define; empty for `<entry_point>New`.
        """
        values = {
            **self._run_values,
            "source": problem.source.strip(),
            "entry_point": problem.entry_point,
            "answer_name": answer_name or f"{problem.entry_point}New",
            "precision": problem.precision,
            "tolerance": self.tolerances.get(problem.precision),
        }
        system = self._render("system", values)
        first = Message(role="user", content=self._render("first", values))
        return (Message(role="system", content=system), first) if system else (first,)

    def feedback_message(self, verdict: Verdict) -> Message:
        """The message about a verdict."""
        values = {
            **self._run_values,
            "status": str(verdict.status),
            "reason": verdict.reason,
            "report": report(verdict, max_chars=self.max_chars, has_baseline=self.has_baseline),
            "speedup": None if verdict.timing is None else verdict.timing.speedup,
        }
        return Message(role="user", content=self._render("feedback", values))

    def conversation(self, problem: Problem, attempts: Sequence[Exchange]) -> tuple[Message, ...]:
        """All messages before the next attempt; the chat template drops earlier thinking."""
        messages = list(self.first_messages(problem))
        for attempt in attempts[-1:] if self.attempts == "last" else attempts:
            messages.append(Message(role="assistant", content=attempt.completion_text))
            messages.append(self.feedback_message(attempt.verdict))
        return tuple(messages)

    def thought(self, text: str) -> str:
        """A text as thinking before an answer; empty if thinking has no tag."""
        return f"<{self.thinking}>\n{text}\n</{self.thinking}>\n\n" if self.thinking else ""

    def to_json(self) -> dict[str, Any]:
        """The whole set, for the run's events."""
        names = ("preset", "thinking", "attempts", "has_baseline", "max_chars")
        found = {name: dict(getattr(self, name)) for name in ("templates", "values", "tolerances")}
        return {**found, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PromptSet:
        """Inverse of `to_json`. Raises KeyError on another object."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})

    @property
    def _run_values(self) -> dict[str, Any]:
        """Names that no template uses are there too, for a template of another version."""
        return {**dict.fromkeys(RUN_NAMES), **self.values, "thinking": self.thinking}

    def _render(self, kind: str, values: Mapping[str, Any]) -> str:
        """A message, without the empty lines that a template's blocks leave at its ends."""
        return render(self.templates[kind], values, name=kind).strip("\n")


def used_by(templates: Mapping[str, str]) -> frozenset[str]:
    """Names that some of these templates use."""
    return frozenset(
        name for kind, source in templates.items() for name in used_names(source, name=kind)
    )
