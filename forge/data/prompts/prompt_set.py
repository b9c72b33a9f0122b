"""The prompts of a run: templates with their settings, made once and used for everything; facts
about the judges that they may state; judged attempts, and what of a conversation fits the context.

Templates are compiled in jinja2's sandbox, and checked before anything starts. A template sees the
names of its kind (`NAMES`) and nothing else. `check_template` renders it with every kind of value
that a run may have, so that a mistake is an error of the file and not of a run. A candidate's
output may be part of a verdict's detail. Templates get it in the report alone, where each line has
the judge's prefix: text of a candidate can neither end the report nor look like a message of ours.
Special tokens in it stay letters (`forge.data.chat`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forge.config.schema import PromptTable
from forge.data.answers import fenced_blocks
from forge.errors import ConfigError
from forge.records import Message, Problem, Prompt, Status, Timing, ToolCall, Verdict
from forge.records.problem import ReferenceModule

if TYPE_CHECKING:
    import jinja2

RUN_NAMES = frozenset(
    {
        "policy", "protocol", "is_timed", "reference_mode", "hardware", "example", "thinking",
    }
)  # fmt: skip
"""Values that are the same for all messages of a run."""
PROBLEM_NAMES = frozenset({"source", "entry_point", "answer_name", "precision", "tolerance"})
VERDICT_NAMES = frozenset({"status", "reason", "report", "speedup"})
NAMES: Mapping[str, frozenset[str]] = {
    "system": RUN_NAMES | PROBLEM_NAMES,
    "first": RUN_NAMES | PROBLEM_NAMES,
    "feedback": RUN_NAMES | VERDICT_NAMES,
}
"""Names that each kind of template may use."""

_SOURCE = "class Model: ...  # the source of a problem"
_REPORT = "judge> the report of a judge"
_PROBLEM = {"source": _SOURCE, "entry_point": "Model", "answer_name": "ModelNew"}
_HARDWARE = {
    "name": "GPU", "memory_gb": 80, "bandwidth_gbps": 3352, "num_multiprocessors": 132,
    "tflops": {"fp32": 62, "fp16": 989},
}  # fmt: skip
_BARE = {**_HARDWARE, "bandwidth_gbps": None, "num_multiprocessors": None, "tflops": {}}
_NO_ANSWER = ("no_code_block", "no_entry_point", "cuda_source", "unclosed_thinking")


@cache
def compiled(source: str, *, name: str) -> jinja2.Template:
    """A template; `name` is its file in tracebacks. Raises jinja2.TemplateSyntaxError."""
    environment = _environment()
    code = environment.compile(source, name=name, filename=name)
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


@cache
def _environment() -> jinja2.Environment:
    """Without jinja2's own globals, which would be names beside ours."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    made.globals.clear()
    return made


def render(source: str, values: Mapping[str, Any], *, name: str) -> str:
    """The text of a message. Raises jinja2.TemplateError or what an expression raises."""
    return compiled(source, name=name).render(values)


def used_names(source: str, *, name: str) -> dict[str, int]:
    """Names that a template reads and does not set, each with its first line."""
    from jinja2 import meta, nodes

    tree = _environment().parse(source, name=name, filename=name)
    read = sorted(tree.find_all(nodes.Name), key=lambda node: -node.lineno)
    lines = {node.name: node.lineno for node in read if node.ctx == "load"}
    return {each: lines.get(each, 1) for each in sorted(meta.find_undeclared_variables(tree))}


def check_template(kind: str, source: str, *, name: str, key: str) -> None:
    """Raises ConfigError, one line for each mistake: syntax, unknown names, a failing expression,
    or a message without its subject. `name` is the file, `key` the key that names it."""
    import jinja2

    place = f"{key}: {name}"
    try:
        used = used_names(source, name=name)
        compiled(source, name=name)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{place}:{error.lineno}: {error.message}") from None
    allowed = sorted(NAMES[kind])
    unknown = {each: line for each, line in used.items() if each not in NAMES[kind]}
    if unknown:
        raise ConfigError(
            "\n".join(
                f"{place}:{line}: unknown variable {each}{_near(each, allowed)}; "
                f"allowed in {kind}: {', '.join(allowed)}"
                for each, line in sorted(unknown.items(), key=lambda item: item[1])
            )
        )
    for values in _samples(kind):
        _check_rendered(kind, source, values, name=name, place=place)


def _check_rendered(
    kind: str, source: str, values: Mapping[str, Any], *, name: str, place: str
) -> None:
    try:
        text = render(source, values, name=name)
    except Exception as error:  # whatever an expression of the user's raises
        line = _line_of(error.__traceback__, name)
        case = f" with status {values['status']}" if kind == "feedback" else ""
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"{place}:{line}: fails{case}: {said}") from None
    subject = {"first": ("source", _SOURCE), "feedback": ("report", _REPORT)}.get(kind)
    if subject is not None and subject[1] not in text:
        case = f" with status {values['status']}" if kind == "feedback" else ""
        raise ConfigError(
            f"{place}: its message{case} lacks the {subject[0]}; it must contain "
            f"{{{{ {subject[0]} }}}}"
        )


def _samples(kind: str) -> Iterator[dict[str, Any]]:
    """Every kind of value: with and without hardware, example, thinking, times."""
    example = {"problem": "class Model: ...", "answer": "class ModelNew: ..."}
    for hardware, shown, thinking, policy in product(
        (None, _BARE, _HARDWARE), (None, example), ("", "think"), ("own", "hybrid")
    ):
        values = {
            "policy": policy, "protocol": "forge" if thinking else "kernelbench",
            "is_timed": hardware is not None, "reference_mode": "eager", "hardware": hardware,
            "example": shown, "thinking": thinking,
        }  # fmt: skip
        if kind == "feedback":
            yield from ({**values, **verdict} for verdict in _sample_verdicts())
            continue
        for tolerance in (None, 1e-4):
            yield {**values, **_PROBLEM, "precision": "fp32", "tolerance": tolerance}


def _sample_verdicts() -> Iterator[dict[str, Any]]:
    scored = [(str(status), "ok", None) for status in Status if status.is_scored]
    absent = [(str(Status.REJECTED), reason, None) for reason in _NO_ANSWER]
    timed = [(str(Status.CORRECT), "ok", speedup) for speedup in (0.5, 2.0)]
    for status, reason, speedup in (*scored, *absent, *timed):
        yield {"status": status, "reason": reason, "report": _REPORT, "speedup": speedup}


def _line_of(traceback: TracebackType | None, name: str) -> int:
    """The innermost line of the template in a traceback; 1 if there is none."""
    line = 1
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == name:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _near(name: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


PREFIX = "judge> "


def report(verdict: Verdict, *, max_chars: int, has_baseline: bool = True) -> str:
    """Status, reason, the detail shortened in the middle, and the times; without a baseline,
    neither the reference's time nor the share of the roofline."""
    head = f"{verdict.status}: {verdict.reason}"
    detail = _shorten(verdict.detail.strip(), max_chars=max_chars)
    lines = [head, *detail.splitlines()]
    if verdict.timing is not None:
        lines += _describe_shapes(verdict, has_baseline=has_baseline)
    return "\n".join(PREFIX + line for line in lines)


def _shorten(text: str, *, max_chars: int) -> str:
    """Keep both ends: a traceback has its location and its message there."""
    if len(text) <= max_chars:
        return text
    tail = max_chars * 2 // 3
    return f"{text[: max_chars - tail].rstrip()}\n...\n{text[-tail:].lstrip()}"


def _describe_shapes(verdict: Verdict, *, has_baseline: bool) -> list[str]:
    """The speed of a timed verdict; of several shapes the mean and the slowest."""
    assert verdict.timing is not None
    speed = _describe_speed(verdict.timing, has_baseline=has_baseline)
    timed = [shape for shape in verdict.shapes if shape.timing is not None]
    if len(timed) < 2:
        return [speed]
    slowest = min(timed, key=lambda shape: shape.timing.speedup if shape.timing else math.inf)
    assert slowest.timing is not None
    of_slowest = _describe_speed(slowest.timing, has_baseline=has_baseline)
    return [
        f"geometric mean of {len(timed)} shapes: {speed}",
        f"slowest at {slowest.name}: {of_slowest}",
    ]


def _describe_speed(timing: Timing, *, has_baseline: bool) -> str:
    baseline = f", baseline {timing.baseline_us:.1f} us" if has_baseline else ""
    line = (
        f"{timing.candidate_us:.1f} us{baseline}: "
        f"{timing.speedup:.2f}x (at least {timing.speedup_low:.2f}x)"
    )
    if timing.achieved_gbps is not None:
        line += f", {timing.achieved_gbps:.0f} GB/s"
    if has_baseline and timing.roofline_share is not None:
        line += f", {timing.roofline_share:.0%} of roofline"
    return line


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
        """A conversation whose first user's message asks about a problem as this set does, or as
        one of `PORTABLE`, with this set's own first messages: an evaluation asks as training did,
        and another machine's facts are not those of this run. Any other conversation as it is."""
        start = next((i for i, one in enumerate(messages) if one.role == "user"), None)
        if start is None:
            return tuple(messages)
        asked = messages[start].content
        for source in (*(block.code for block in fenced_blocks(asked)), asked):
            for name in _CLASS.findall(source):
                problem = ReferenceModule(problem_id="", source=source, entry_point=name)
                first = self.first_messages(problem)
                if first[-1] == messages[start] or any(
                    one._opens(messages[: start + 1], problem) for one in self._portable
                ):
                    return (*first, *messages[start + 1 :])
        return tuple(messages)

    @cached_property
    def _portable(self) -> tuple[PromptSet, ...]:
        return tuple(
            replace(self, templates={kind: _preset(name, kind) for kind in KINDS})
            for name in PORTABLE
        )

    def _opens(self, messages: Sequence[Message], problem: ReferenceModule) -> bool:
        """True if a conversation begins with these messages, but for facts in the system's, which
        its first line has none of."""
        *system, first = self.first_messages(problem)
        lines = [one.content.split("\n")[0] for one in system]
        return first == messages[-1] and lines == [
            one.content.split("\n")[0] for one in messages[:-1]
        ]

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
PORTABLE = ("standard", "tiny")
"""Presets whose questions state no fact of a run, so that any run knows them again."""
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
