"""The prompts of a run: templates with their settings, made once and used for everything; facts
about the judges that they may state; judged attempts, and what of a conversation fits the context.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from forge.config.schema import PromptTable
from forge.data.answers import fenced_blocks
from forge.data.prompts.templates import RUN_NAMES, check_template, render, report, used_names
from forge.errors import ConfigError
from forge.records import Message, Problem, Prompt, Status, ToolCall, Verdict
from forge.records.problem import ReferenceModule

TOOL_ROLE = "tool"
"""Role of a tool's reply. A prompter without a template for it takes `user`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A judged attempt: the model's completion and the verdict."""

    completion_text: str
    verdict: Verdict
    calls: Sequence[ToolCall] = ()
    """Calls of tools before the answer."""


def fit(
    prompts: PromptSet,
    problem: Problem,
    attempts: Sequence[Exchange],
    *,
    budget_tokens: int,
    render: Callable[[Sequence[Message]], Prompt],
) -> Prompt | None:
    """The conversation within `budget_tokens`: the oldest attempts are dropped first, the newest
    never. None if not even that one fits (the rollout ends `context_full`)."""
    for first in range(max(1, len(attempts))):
        prompt = render(prompts.conversation(problem, attempts[first:]))
        if len(prompt.ids) <= budget_tokens:
            return prompt
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The card that kernels are judged on."""

    name: str
    memory_gb: int | None = None
    """Memory, in GiB as vendors name it."""
    bandwidth_gbps: int | None = None
    """Memory rate, in 1e9 bytes a second."""
    num_multiprocessors: int | None = None
    tflops: Mapping[str, int] = field(default_factory=dict[str, int])
    """Peak in 1e12 FLOPs a second without sparsity, by dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """The rules of the judges in force, and their device."""

    policy: str = "own"
    protocol: str = "forge"
    tolerances: Mapping[str, float] = field(default_factory=dict[str, float])
    """Relative tolerance of an output, by a problem's precision."""
    is_timed: bool = False
    """True if correct kernels are timed, so that speed counts."""
    reference_mode: str = "eager"
    """How the reference is timed: eager or compile."""
    device: DeviceFacts | None = None
    """None if nothing is known about it, as on a CPU."""


HASH_DIGITS = 12
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


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
        """The messages at the start of every conversation about a problem. The answer has to define
        `answer_name`; empty for `<entry_point>New`."""
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
        """The message about a verdict. One that is not scored asks for nothing, whatever the
        template says: no answer could change it."""
        words = report(verdict, max_chars=self.max_chars, has_baseline=self.has_baseline)
        if not verdict.status.is_scored:
            return Message(role="user", content=f"{words}\n\n{UNSCORED[verdict.status]}")
        values = {
            **self._run_values,
            "status": str(verdict.status),
            "reason": verdict.reason,
            "report": words,
            "speedup": None if verdict.timing is None else verdict.timing.speedup,
        }
        return Message(role="user", content=self._render("feedback", values))

    def conversation(self, problem: Problem, attempts: Sequence[Exchange]) -> tuple[Message, ...]:
        """All messages before the next attempt; the chat template drops earlier thinking."""
        messages = list(self.first_messages(problem))
        for attempt in attempts[-1:] if self.attempts == "last" else attempts:
            for call in attempt.calls:
                messages.append(Message(role="assistant", content=call.message))
                messages.append(Message(role=TOOL_ROLE, content=call.result))
            messages.append(Message(role="assistant", content=attempt.completion_text))
            messages.append(self.feedback_message(attempt.verdict))
        return tuple(messages)

    def restated(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """A conversation whose first user's message asks about a problem as this set does, with
        this set's own first messages: another machine's facts are not those of this run. Any other
        conversation as it is."""
        start = next((i for i, one in enumerate(messages) if one.role == "user"), None)
        if start is None:
            return tuple(messages)
        for block in fenced_blocks(messages[start].content):
            for name in _CLASS.findall(block.code):
                problem = ReferenceModule(problem_id="", source=block.code, entry_point=name)
                first = self.first_messages(problem)
                if first[-1] == messages[start]:
                    return (*first, *messages[start + 1 :])
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


UNSCORED = {
    Status.UNJUDGEABLE: "The problem cannot be judged, whatever the answer is.",
    Status.INFRA_ERROR: "The judge failed: this is no verdict on the answer.",
}
"""Text below the report of a verdict that is not scored."""
PRESETS = Path(__file__).with_name("presets")
KINDS = ("system", "first", "feedback")
SUFFIX = ".jinja"
MAX_CHARS = {"tiny": 600}
"""Maximum length of a report's detail, by preset: three turns of a tiny model share a context of a
thousand tokens with the problem."""
OTHER_MAX_CHARS = 2400
MAX_BYTES = 1 << 20
"""Maximum size of a template or an example."""


def make_prompts(table: PromptTable, facts: PromptFacts | None = None) -> PromptSet:
    """The prompts of an experiment; without facts, of judges on a CPU. Raises ConfigError for a
    template or an example that cannot be read or used."""
    facts = facts or PromptFacts()
    templates = {kind: _template(table, kind) for kind in KINDS}
    used = used_by(templates)
    device = facts.device if table.hardware else None
    values: dict[str, Any] = {
        "policy": facts.policy,
        "protocol": facts.protocol,
        "is_timed": facts.is_timed,
        "reference_mode": facts.reference_mode,
        "hardware": None if device is None else {**asdict(device), "tflops": dict(device.tflops)},
        "example": _example(table) if "example" in used else None,
    }
    return PromptSet(
        preset=table.preset,
        templates=templates,
        values={name: value for name, value in values.items() if name in used},
        tolerances=dict(facts.tolerances) if "tolerance" in used else {},
        thinking=table.thinking,
        attempts=table.attempts,
        has_baseline=table.baseline,
        max_chars=MAX_CHARS.get(table.preset, OTHER_MAX_CHARS),
    )


def _template(table: PromptTable, kind: str) -> str:
    path: Path | None = getattr(table, kind)
    if path is None:
        return _preset(table.preset, kind)
    source = _read(path, key=f"prompt.{kind}")
    check_template(kind, source, name=str(path), key=f"prompt.{kind}")
    return source


@cache
def _preset(preset: str, kind: str) -> str:
    return (PRESETS / preset / f"{kind}{SUFFIX}").read_text(encoding="utf-8")


def _example(table: PromptTable) -> dict[str, str] | None:
    """The two blocks of the example's file. Raises ConfigError if it has others."""
    if table.example is False:
        return None
    path = table.example or PRESETS / "example.md"
    blocks = [one.code.strip("\n") for one in fenced_blocks(_read(path, key="prompt.example"))]
    if len(blocks) != 2:
        raise ConfigError(
            f"prompt.example: {path}: found {len(blocks)} fenced blocks; two, a problem and its "
            "answer"
        )
    return {"problem": blocks[0], "answer": blocks[1]}


def _read(path: Path, *, key: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{key}: {path}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{key}: {path}: larger than {MAX_BYTES >> 20} MiB; a short text")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{key}: {path}:{line}: not UTF-8 text, which a prompt must be") from None
