"""Templates of messages: compiled in jinja2's sandbox, and checked before anything starts.

A template sees the names of its kind (`NAMES`) and nothing else. `check_template` renders it with
every kind of value that a run may have, so that a mistake is an error of the file and not of a run.

A candidate's output may be part of a verdict's detail. Templates get it in the report alone, where
each line has the judge's prefix: text of a candidate can neither end the report nor look like a
message of ours. Special tokens in it stay letters (`forge.data.chat`).
"""

from __future__ import annotations

import difflib
import math
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.records import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    import jinja2

    from forge.records import Timing, Verdict

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
