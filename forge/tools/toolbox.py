"""The tools of a rollout: what a model may ask for, found in its message, and the answers.

A message asks as the model's own chat template writes calls (`forge.data.answer_form`), or by a
fenced block whose word is the tool's name. The first call of a message counts.

`run` and `profile` ask the judges, which treat the candidate as any other: the same refusals,
sandbox and limits. `run` shows the results of inputs that nothing is judged on. `profile` says of a
candidate that is not correct no more than that, so that neither is a way to more verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from forge.data.answer_form import ToolForm
from forge.data.answers import fenced_blocks, without_thinking
from forge.data.problem_files import name_shape, override, parse_source
from forge.errors import ConfigError
from forge.records import Verdict
from forge.records.problem import ReferenceModule
from forge.records.verdict import LaunchFacts, OutputFacts
from forge.tools.docs import reference, search

MAX_CHARS = 2000
MAX_LINES = 12
"""Launches or outputs that an answer lists."""
FENCED = """You may ask tools before you answer, up to {max_calls} times. To ask one, end your \
message with a fenced block that begins with its name; the reply is the next message. A message \
without such a block is your answer.

{tools}"""
"""Text of a conversation for a model without a tool template of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool with the words that describe it to a model."""

    name: str
    description: str
    fenced: str
    """How a fenced block asks for it."""
    parameters: Mapping[str, Mapping[str, str]]
    """JSON schema of each argument."""

    def schema(self) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": {name: dict(value) for name, value in self.parameters.items()},
            "required": ["query"] if "query" in self.parameters else [],
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


_CODE = {
    "type": "string",
    "description": "Python source that defines the answer's class; absent for the newest you wrote",
}
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name="docs",
            description="Search the reference of the installed Triton.",
            fenced="a name, such as tl.dot, or words",
            parameters={"query": {"type": "string", "description": "tl.dot, or words"}},
        ),
        Tool(
            name="run",
            description="Run your candidate once on fresh inputs: the range of each output, and "
            "its difference from that of the reference. It is no verdict.",
            fenced='values of the problem\'s constants, such as {"N": 128}, or nothing for its own '
            "sizes. The candidate is the python block before it, or the newest one you wrote",
            parameters={
                "sizes": {
                    "type": "object",
                    "description": "values of the problem's module constants; empty for its own",
                },
                "code": _CODE,
            },
        ),
        Tool(
            name="profile",
            description="The kernel launches of your candidate at the problem's sizes: grid, "
            "registers, spills, bytes; with a GPU, the time of each launch and the rates achieved.",
            fenced="empty. The candidate is as for run",
            parameters={"code": _CODE},
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a message asks for."""

    tool: str
    arguments: Mapping[str, Any]
    """As in the tool's schema; `error` alone where they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    ask: Callable[..., Awaitable[Verdict]]
    """`Pool.judge` of the judges."""
    max_calls: int = 0
    has_times: Callable[[], bool] = lambda: False
    """True if the judges measure times."""

    async def answer(self, call: Call, *, problem: ReferenceModule, code: str, left: int) -> str:
        """The reply to a call, with the number of calls that are left in the turn."""
        lines = (await self.reply(call, problem=problem, code=code)).splitlines()
        lines.append(f"calls left in this turn: {left}" if left else "no call is left: answer now")
        return "\n".join(f"{call.tool}> {line}" for line in lines)

    async def reply(self, call: Call, *, problem: ReferenceModule, code: str) -> str:
        """The reply to a call; a mistake in it is a reply, too. `code`: the newest candidate; empty
        without one."""
        given = call.arguments
        code = str(given.get("code") or code)
        if "error" in given:
            text = str(given["error"])
        elif call.tool == "docs":
            text = await search_docs(str(given.get("query", "")))
        elif not code:
            text = "there is no candidate yet: write one in a python block before the call"
        elif call.tool == "run":
            text = await self._run(problem, code, given.get("sizes") or {})
        else:
            text = await self._profile(problem, code)
        return text[:MAX_CHARS]

    async def _run(self, problem: ReferenceModule, code: str, sizes: Any) -> str:
        try:
            sized, name = at_sizes(problem, sizes)
        except ConfigError as error:
            return str(error)
        found = await self.ask(sized, code, timing=False, profile=False, outputs=True)
        return describe_run(found, name=name)

    async def _profile(self, problem: ReferenceModule, code: str) -> str:
        has_times = self.has_times()
        first = replace(problem, shapes=())
        found = await self.ask(first, code, timing=has_times, profile=True, outputs=not has_times)
        return describe_profile(found)


async def search_docs(query: str) -> str:
    entries = await anyio.to_thread.run_sync(reference)
    return search(query, entries, max_chars=MAX_CHARS)


def find_call(
    text: str, names: Sequence[str], *, thinking: str, form: ToolForm | None = None
) -> Call | None:
    """The first call in a message; None for one that is an answer. `thinking`: tag of thinking, in
    which nothing is called; `form`: that of the chat template; None for fenced blocks."""
    answer = without_thinking(text, tag=thinking) if thinking else text
    if answer is None:
        return None
    if form is not None:
        if (found := form.find(answer)) is None:
            return None
        name, arguments = found
        if name in names:
            return Call(name, arguments)
        error = arguments.get("error", f"no tool {name[:80]!r}; there are {', '.join(names)}")
        return Call(names[0], {"error": error})
    for block in fenced_blocks(answer):
        name = block.info.strip()
        if name in names:
            return Call(name, _arguments(name, block.code.strip()))
    return None


def fenced_words(names: Sequence[str], *, max_calls: int) -> str:
    """The text that tells a model about its tools, called by fenced blocks."""
    tools = "\n\n".join(
        f"```{name}\n```\n{TOOLS[name].description} The block holds {TOOLS[name].fenced}."
        for name in names
    )
    return FENCED.format(max_calls=max_calls, tools=tools)


def _arguments(name: str, body: str) -> dict[str, Any]:
    """The arguments in a fenced block."""
    if name == "docs":
        return {"query": body}
    if name == "profile" or not body:
        return {}
    try:
        sizes = json.loads(body)
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, dict):
        return {"error": 'the block of run holds constants as JSON, such as {"N": 128}, or nothing'}
    return {"sizes": sizes}


def at_sizes(problem: ReferenceModule, sizes: Any) -> tuple[ReferenceModule, str]:
    """The problem with these values of its module constants, and the name of that shape. Raises
    ConfigError."""
    name = f"{problem.problem_id}.py"
    file = parse_source(problem.source, path=Path(name), entry_point=problem.entry_point)
    allowed = ", ".join(sorted(file.constants)) or "none"
    if not isinstance(sizes, dict):
        raise ConfigError(f"sizes: an object of the problem's constants is needed; {allowed}")
    for key, value in sizes.items():
        if key not in file.constants:
            raise ConfigError(f"sizes: no constant {str(key)[:80]!r}; the problem has {allowed}")
        if not isinstance(value, bool | int | float) or value != value or abs(value) > 1 << 53:
            raise ConfigError(f"sizes: {key}: found {str(value)[:80]!r}; a number is needed")
    source = override(file, sizes) if sizes else problem.source
    return replace(problem, source=source, shapes=()), name_shape(sizes) if sizes else "its sizes"


def describe_run(found: Verdict, *, name: str) -> str:
    """What `run` says: whether the outputs agree, and their figures."""
    outputs = found.profile.outputs if found.profile is not None else ()
    if not outputs:
        return f"at {name}: {_failure(found)}"
    agrees = "agrees with the reference" if found.is_correct else f"differs: {found.detail}"
    lines = [_output(one) for one in outputs[:MAX_LINES]]
    return "\n".join([f"at {name}, on fresh inputs: {agrees}", *lines])


def _failure(found: Verdict) -> str:
    if not found.status.is_scored:
        return f"not run: {found.reason}: {found.detail}"
    return f"{found.status}: {found.reason}\n{found.detail}"


def _output(one: OutputFacts) -> str:
    def ranged(low: float | None, high: float | None, mean: float | None) -> str:
        if low is None:
            return "no finite element"
        return f"{low:.6g} to {high:.6g}, mean {mean:.6g}"

    line = f"{one.name} {one.dtype}{list(one.shape)}: {ranged(one.low, one.high, one.mean)}"
    if one.num_nan or one.num_inf:
        line += f", {one.num_nan} NaN, {one.num_inf} infinite"
    expected = ranged(one.expected_low, one.expected_high, one.expected_mean)
    largest = "none" if one.largest_error is None else f"{one.largest_error:.3g}"
    return f"{line}; reference: {expected}; largest difference: {largest}"


def describe_profile(found: Verdict) -> str:
    """What `profile` says: launches as captured and compiled, and times where they are measured."""
    profile, timing = found.profile, found.timing
    if profile is None or not profile.launches:
        return _failure(found)
    lines = [f"one call needs {profile.needed_bytes:,} bytes of inputs and outputs"]
    if profile.flops:
        lines[0] += f" and {profile.flops:,} FLOPs of products"
    if profile.moved_bytes is not None:
        lines[0] += f"; its kernels load and store {profile.moved_bytes:,}"
    if timing is not None:
        rates = [f"{timing.achieved_gbps:.0f} GB/s"] if timing.achieved_gbps else []
        rates += [f"{timing.achieved_tflops:.1f} TFLOP/s"] if timing.achieved_tflops else []
        rates += [f"{timing.roofline_share:.0%} of the roofline"] if timing.roofline_share else []
        speed = f"{timing.candidate_us:.1f} us, {timing.speedup:.2f}x the reference"
        lines.append(", ".join([speed, *rates]))
    elif found.device == "cpu":
        lines.append("no GPU here: times, achieved rates and occupancy are not measured")
    else:
        lines.append("not timed: it is not correct, or times are off")
    times = iter([one.total_us for one in profile.kernels if one.is_own])
    lines += [_launch(one, next(times, None)) for one in profile.launches[:MAX_LINES]]
    if len(profile.launches) > MAX_LINES:
        lines.append(f"and {len(profile.launches) - MAX_LINES} launches more")
    return "\n".join(lines)


def _launch(one: LaunchFacts, time_us: float | None) -> str:
    grid = "x".join(map(str, one.grid))
    parts = [f"launch of {one.name}: grid {grid}", f"{one.num_warps} warps"]
    parts.append(f"{one.num_stages} stages")
    if one.num_registers is not None:
        parts += [f"{one.num_registers} registers", f"{one.num_spills} spills"]
        parts.append(f"{one.shared_bytes} bytes of shared memory")
    parts.append(f"tensors of {one.num_bytes:,} bytes")
    return ", ".join(parts + ([f"{time_us:.1f} us"] if time_us is not None else []))
