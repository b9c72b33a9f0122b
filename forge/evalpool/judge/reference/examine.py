"""Runs a problem's reference in many ways, to learn whether it can be judged and trained on.

Forked by the zygote (role "examiner"), one a problem, sandboxed as an oracle is. It reports after
each step, so that the judge (`examiner.py`) knows the step in which a problem hung or died:

    judge ── EXAMINE ──▶ load, run, given, again, inputs, parameters ── FOUND each ──▶ judge
                         or, if asked, sets alone                    ── FOUND ──▶
                         what raises                                 ── FAILED ──▶

What does not matter, and what is constant, is said by the rule of a draw (wide/sets.py), as a
verdict says it. Not covered: a hostile problem. Its code runs in this process, and could report
that it has no fault.
"""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import ITEM_BYTES
from forge.evalpool.judge.numbers import parameters
from forge.evalpool.judge.numbers.called import CLOCK, Unjudgeable, dtype_name, leaves, widened
from forge.evalpool.judge.numbers.given import list_sets
from forge.evalpool.judge.reference.construct import describe, replace_hub, run_eagerly
from forge.evalpool.judge.reference.subject import FILE, Describer, Outputs, Subject, terms_of
from forge.evalpool.judge.wide.sets import Draws, InputSet
from forge.records.examination import Flag

LAST_STEPS = ("sets", "parameters")
"""The last step of a list of input sets, and of an examination."""
MAX_AGAIN_S = 5.0
"""Time to load a model that is constructed once more."""
MAX_NAMES = 4
"""Maximum number of parameters that one flag names."""


@dataclass(slots=True, kw_only=True)
class Found:
    """Findings of one step."""

    flags: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def main(sock: socket.socket) -> None:
    study = Study(frames.asked(sock, Kind.EXAMINE).body)
    name = ""
    try:
        with torch.no_grad():
            for name, step in study.steps():
                found = step()
                body = {"step": name, "flags": found.flags, "facts": found.facts}
                is_unusable = any(Flag(flag).is_unusable for flag in found.flags)
                is_last = name in LAST_STEPS or is_unusable
                frames.send(sock, Kind.FOUND, {**body, "is_last": is_last})
                if is_last:
                    return
    except frames.PeerGone:
        raise
    except BaseException as error:  # a reference may raise anything; the judge gets it
        body = {"step": name, **describe(error), "line": _line_of(error)}
        frames.send(sock, Kind.FAILED, body)


class Study:
    """One problem and the facts known about it so far."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.subject: Subject
        self.inputs: list[Any] = []
        self.outputs: Outputs = []
        self.draws: Draws
        self.sets: Iterator[InputSet]
        """Sets of a draw, of which `given` takes the first."""
        self.first: InputSet
        self.load_s = 0.0
        self.ends_at = time.monotonic() + request["budget_s"]

    def steps(self) -> Iterator[tuple[str, Callable[[], Found]]]:
        """The steps in order; each relies on those before it."""
        if self.request["lists_sets"]:
            yield "sets", self.list_sets
            return
        yield "load", self.load
        yield "run", self.run
        yield "given", self.given
        yield "again", self.construct_again
        yield "inputs", self.plant
        yield "parameters", self.change_parameters

    def list_sets(self) -> Found:
        """Lists the sets of `get_input_sets()`, on torch's `meta` device if the file runs there."""
        replace_hub(self.request["source"])
        return Found(facts={"shapes": list_sets(self.request["source"], file=FILE)})

    def load(self) -> Found:
        run_eagerly(self.request["source"])
        torch.backends.cuda.matmul.allow_tf32 = bool(self.request["tf32_products"])
        torch.backends.cudnn.allow_tf32 = bool(self.request["tf32"])
        started = time.monotonic()
        self.subject = Subject.load(self.request, terms_of(self.request))
        Describer().tree(self.subject.init)
        parameters.move(self.subject.model)
        self.load_s = time.monotonic() - started
        return Found()

    def run(self) -> Found:
        self.inputs = self.subject.draw()
        Describer().tree(self.inputs)
        started = time.monotonic()
        self.outputs = self.subject.run(self.inputs)
        forward_s = time.monotonic() - started
        names = [f"{dtype_name(one)}{list(one.shape)}" for one in self.outputs]
        found = Found(facts={"outputs": names, "forward_s": forward_s})
        state = list(self.subject.model.state_dict().values())
        everything = [*self.outputs, *leaves(self.inputs), *state]
        unknown = [name for one in everything if (name := dtype_name(one)) not in ITEM_BYTES]
        unknown += [dtype_name(one) for one in self.outputs if one.is_complex()]
        if unknown:
            found.flags[Flag.UNSUPPORTED] = f"tensors of {unknown[0]} are not judged"
        each = sum(one.nbytes for one in [*leaves(self.inputs), *self.outputs])
        num_bytes = self.request["num_sets"] * each + sum(one.nbytes for one in state)
        max_bytes = self.request["max_bytes"]
        if num_bytes > max_bytes:
            words = f"inputs and outputs take {num_bytes / 1e9:.3g} GB of {max_bytes / 1e9:.3g} GB"
            found.flags[Flag.OUT_OF_MEMORY] = words
        num_bad = sum(int((~torch.isfinite(widened(one))).sum()) for one in self.outputs)
        if num_bad:
            share = num_bad / max(1, sum(one.numel() for one in self.outputs))
            found.flags[Flag.NON_FINITE] = f"{share:.1%} of the output is NaN or infinite"
        return found

    def given(self) -> Found:
        """Makes the first set of a draw, and estimates the time that a judge would wait for all: on
        a CPU that of the reference alone."""
        started = time.monotonic()
        CLOCK.start(lambda _: None)
        found = Found()
        try:
            self.draws = self.subject.draws(self.subject.counted())
            self.sets = self.draws.sets(self.request["num_sets"])
            self.first = next(self.sets)
        except Unjudgeable as error:
            found.flags[error.flag] = str(error)
        CLOCK.stop()
        is_cpu = self.request["device"] == "cpu"
        each_s = CLOCK.seconds if is_cpu else time.monotonic() - started
        all_s, limit_s = self.load_s + self.request["num_sets"] * each_s, self.request["timeout_s"]
        if all_s > limit_s:
            words = f"inputs and reference take {all_s:.0f} s; a judge waits {limit_s:.0f} s"
            found.flags[Flag.SLOW] = words
        return found

    def construct_again(self) -> Found:
        """Constructs another model with the same parameters, buffers and drawn tensors, all that an
        answer gets. Its outputs differ if the constructor draws anything else."""
        if self.load_s > MAX_AGAIN_S:
            return Found()
        try:
            outputs = self.subject.run(self.inputs, self.subject.again())
        except Exception:  # a constructor may run once; there may be no memory for two models
            return Found()
        if self.draws.are_again(outputs, self.outputs):
            return Found()
        words = "the constructor draws random numbers that no tensor of the model holds"
        return Found(flags={Flag.UNSUPPORTED: f"{words}, so an answer cannot have them"})

    def plant(self) -> Found:
        """Makes the other sets, and finds inputs of which no plant matters."""
        sets = [self.first]
        for one in self.sets:
            sets.append(one)
            if time.monotonic() > self.ends_at:
                return Found(facts={"num_unchecked": len(leaves(self.inputs))})
        found = _ignoring(Flag.INPUT_INSENSITIVE, self.draws.insensitive(), 0)
        if self.draws.is_constant():
            found.flags = {Flag.CONSTANT: "one answer passes: no input changes the output"}
        elif (copied := self.draws.copied_input(sets)) is not None:
            found.flags[Flag.IDENTITY] = f"the output is input {copied}"
        return found

    def change_parameters(self) -> Found:
        """Changes each parameter alone by about its own size, and finds those without effect."""
        named = [
            (name, one)
            for name, one in self.subject.model.named_parameters()
            if one.is_floating_point() and one.numel()
        ]
        ignored: list[str] = []
        num_weights = num_unchecked = 0
        for index, (name, parameter) in enumerate(named):
            if time.monotonic() > self.ends_at:
                num_unchecked = len(named) - index
                break
            if not self.draws.parameters_matter([name]):
                ignored.append(name)
                num_weights += sum(size > 1 for size in parameter.shape) > 1
        is_vector = not num_weights and len(ignored) < len(named)
        flag = Flag.VECTOR_INSENSITIVE if is_vector else Flag.PARAMETER_INSENSITIVE
        return _ignoring(flag, ignored, num_unchecked)


def _ignoring(flag: Flag, ignored: list[str], num_unchecked: int) -> Found:
    found = Found(facts={"num_unchecked": num_unchecked})
    if ignored:
        names = ", ".join(ignored[:MAX_NAMES])
        if len(ignored) > MAX_NAMES:
            names += f" and {len(ignored) - MAX_NAMES} more"
        found.flags[flag] = f"{names} {'does' if len(ignored) == 1 else 'do'} not matter"
    return found


def _line_of(error: BaseException) -> int | None:
    """The innermost line of the problem's file."""
    if isinstance(error, SyntaxError) and error.filename == FILE:
        return error.lineno
    steps = traceback.walk_tb(error.__traceback__)
    lines = [number for frame, number in steps if frame.f_code.co_filename == FILE]
    return lines[-1] if lines else None
