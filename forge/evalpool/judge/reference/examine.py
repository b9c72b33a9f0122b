"""Runs a problem's reference in many ways, to learn whether it can be judged and trained on.

Forked by the zygote (role "examiner"), one a problem, sandboxed as an oracle is. The judge's side
is `examiner.py`. It reports its findings after each step, so that the judge knows the step in which
a problem hung or died:

    judge ── EXAMINE ──▶ load, run, repeat, exact, draws, inputs, parameters ── FOUND each ──▶ judge
                         or, if asked, sets alone                            ── FOUND ──▶
                         what raises                                         ── FAILED ──▶

"Within tolerance" is what the judge accepts of a candidate (`compare.py`). Not covered: a hostile
problem. Its code runs in this process, and could report that it has no fault.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel import frames
from forge.evalpool.judge.channel.frames import Kind
from forge.evalpool.judge.channel.shm import ITEM_BYTES
from forge.evalpool.judge.numbers.called import dtype_name, leaves, replaced
from forge.evalpool.judge.numbers.file_inputs import list_sets
from forge.evalpool.judge.numbers.finite import are_finite, widened
from forge.evalpool.judge.numbers.gpu_compare import is_near
from forge.evalpool.judge.numbers.inputs.input_sets import FIRST, OTHERS
from forge.evalpool.judge.reference.oracle import Describer
from forge.evalpool.judge.reference.reports import describe
from forge.evalpool.judge.reference.stand_ins import replace_hub, run_eagerly
from forge.evalpool.judge.reference.subject import FILE, Outputs, Subject
from forge.evalpool.judge.reference.variations import (
    Range,
    disturbed,
    relative,
    shake,
    varied,
)
from forge.records.examination import Flag

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from forge.evalpool.judge.numbers.gpu_compare import Allowed

NUM_DRAWS = 4
"""Draws of inputs as given, to find a constant output. Each costs a forward pass."""
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
    """Answers the judge on `sock` for one problem."""
    deadline = time.monotonic() + 60.0
    request = frames.receive(sock, deadline=deadline, expected=(Kind.EXAMINE,)).body
    study = Study(request)
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
        self.allowed: list[Allowed] = []
        """Tolerances of `outputs`."""
        self.load_s = self.draw_s = self.forward_s = 0.0
        self.ends_at = time.monotonic() + request["budget_s"]

    def steps(self) -> Iterator[tuple[str, Callable[[], Found]]]:
        """The steps in order; each relies on those before it."""
        if self.request["lists_sets"]:
            yield "sets", self.list_sets
            return
        yield "load", self.load
        yield "run", self.run
        yield "repeat", self.repeat
        yield "again", self.construct_again
        yield "exact", self.compare_with_exact
        yield "draws", self.compare_draws
        yield "inputs", self.change_inputs
        yield "parameters", self.change_parameters

    def list_sets(self) -> Found:
        """Lists the sets of `get_input_sets()`, without making their tensors if the file runs on
        torch's `meta` device."""
        replace_hub(self.request["source"])
        return Found(facts={"shapes": list_sets(self.request["source"], file=FILE)})

    def load(self) -> Found:
        """Loads the module and its model."""
        run_eagerly(self.request["source"])
        started = time.monotonic()
        self.subject = Subject.load(self.request)
        self.load_s = time.monotonic() - started
        return Found()

    def run(self) -> Found:
        """Draws inputs and runs one forward pass."""
        started = time.monotonic()
        self.inputs = self.subject.draw()
        self.draw_s = time.monotonic() - started
        Describer().tree(self.inputs)
        started = time.monotonic()
        self.outputs = self.subject.run(self.inputs)
        self.forward_s = time.monotonic() - started
        names = [f"{dtype_name(one)}{list(one.shape)}" for one in self.outputs]
        found = Found(facts={"outputs": names, "forward_s": self.forward_s})
        everything = [*self.outputs, *leaves(self.inputs), *self.subject.state()]
        unknown = [name for one in everything if (name := dtype_name(one)) not in ITEM_BYTES]
        unknown += [dtype_name(one) for one in self.outputs if one.is_complex()]
        if unknown:
            found.flags[Flag.UNSUPPORTED] = f"tensors of {unknown[0]} are not judged"
        each = self.subject.num_bytes(self.inputs, self.outputs)
        state = sum(one.nbytes for one in self.subject.state())
        num_bytes = self.request["num_sets"] * each + state
        max_bytes = self.request["max_bytes"]
        if max_bytes is not None and num_bytes > max_bytes:
            words = f"inputs and outputs take {num_bytes / 1e9:.3g} GB of {max_bytes / 1e9:.3g} GB"
            found.flags[Flag.OUT_OF_MEMORY] = words
        num_bad = sum(int((~torch.isfinite(widened(one))).sum()) for one in self.outputs)
        if num_bad:
            share = num_bad / max(1, sum(one.numel() for one in self.outputs))
            found.flags[Flag.NON_FINITE] = f"{share:.1%} of the output is NaN or infinite"
        return found

    def repeat(self) -> Found:
        """Runs the same inputs again, which must give the same outputs."""
        again = self.subject.run(self.inputs)
        if len(again) == len(self.outputs) and all(
            one.shape == other.shape and self.subject.is_repeated(one, other)
            for one, other in zip(self.outputs, again, strict=True)
        ):
            return Found()
        return Found(flags={Flag.NONDETERMINISTIC: "two runs on the same inputs differ"})

    def construct_again(self) -> Found:
        """Constructs another model with the same parameters, buffers and drawn tensors, all that an
        answer gets. Its outputs differ if the constructor draws anything else."""
        if self.load_s > MAX_AGAIN_S:
            return Found()
        try:
            outputs = self.subject.again().run(self.inputs)
        except Exception:  # a constructor may run once; there may be no memory for two models
            return Found()
        pairs = list(zip(outputs, self.outputs, strict=False))
        if all(is_near(one, first, allowed=self.subject.allowed(first)) for one, first in pairs):
            return Found()
        words = "the constructor draws random numbers that no tensor of the model holds"
        return Found(flags={Flag.UNSUPPORTED: f"{words}, so an answer cannot have them"})

    def compare_with_exact(self) -> Found:
        """Compares eager with float64, and estimates the time that a judge would wait for it."""
        started = time.monotonic()
        errors = self.subject.own_errors(self.inputs, self.outputs)
        exact_s = time.monotonic() - started
        self.allowed = [
            self.subject.allowed(output, error)
            for output, error in zip(self.outputs, errors.packed, strict=True)
        ]
        found = Found()
        if errors.largest > self.subject.max_own_error:
            words = f"eager is {errors.largest:.0f} tolerances from float64"
            found.flags[Flag.ILL_CONDITIONED] = words
        each_s = self.draw_s + 2 * self.forward_s + exact_s
        all_s, limit_s = self.load_s + self.request["num_sets"] * each_s, self.request["timeout_s"]
        if all_s > limit_s:
            words = f"inputs and reference take {all_s:.0f} s; a judge waits {limit_s:.0f} s"
            found.flags[Flag.SLOW] = words
        return found

    def compare_draws(self) -> Found:
        """Draws fresh inputs, as given and of the judge's other distributions, and finds one
        answer, or one input, that is right for all of them."""
        ranges = [Range(one, allowed=self.subject.allowed(one)) for one in self.outputs]
        copied = self._copied(self.inputs, self.outputs)
        for name in self._draws():
            inputs = self._drawn(name)
            outputs = self._outputs_of(inputs, is_given=name is None)
            if outputs is None:
                continue
            if [one.shape for one in outputs] != [one.shape for one in self.outputs]:
                return Found()  # shapes that follow the inputs are no constant
            if copied is not None and self._copied(inputs, outputs) != copied:
                copied = None
            for number, one in enumerate(ranges):
                one.add(outputs[number], allowed=self.subject.allowed(outputs[number]))
            del inputs, outputs  # before the next: at full size each is a tenth of a card
        found = Found()
        found.facts["variation"] = variation = relative(ranges, self.outputs)
        if all(one.is_one_answer() for one in ranges):
            words = (
                f"one answer passes for all inputs: outputs vary by {variation:.1e} of their size"
            )
            found.flags[Flag.CONSTANT] = words
        if copied is not None:
            found.flags[Flag.IDENTITY] = f"the output is input {copied}"
        return found

    def change_inputs(self) -> Found:
        """Changes each tensor among the inputs alone, and finds those that the output ignores."""
        every = leaves(self.inputs)
        ignored: list[str] = []
        for index, leaf in enumerate(every):
            if time.monotonic() > self.ends_at:
                return _ignoring(Flag.INPUT_INSENSITIVE, ignored, len(every) - index)
            others = [one for one in self._other_values(index, leaf) if not torch.equal(one, leaf)]
            if others and all(self._ignores(index, value) for value in others):
                ignored.append(f"input {index}")
        return _ignoring(Flag.INPUT_INSENSITIVE, ignored, 0)

    def change_parameters(self) -> Found:
        """Changes each parameter alone by about its own size, and finds those without effect."""
        named = list(self.subject.parameters())
        ignored: list[str] = []
        num_weights = num_unchecked = 0
        for index, (name, parameter) in enumerate(named):
            if time.monotonic() > self.ends_at:
                num_unchecked = len(named) - index
                break
            kept = parameter.clone()
            shake(parameter, by=1.0)
            try:
                if self._is_within(self.subject.run(self.inputs)):
                    ignored.append(name)
                    num_weights += sum(size > 1 for size in parameter.shape) > 1
            finally:
                parameter.copy_(kept)
        is_vector = not num_weights and len(ignored) < len(named)
        flag = Flag.VECTOR_INSENSITIVE if is_vector else Flag.PARAMETER_INSENSITIVE
        return _ignoring(flag, ignored, num_unchecked)

    def _draws(self) -> list[str | None]:
        """Distributions of other inputs; None for inputs as given."""
        return [None] * (NUM_DRAWS - 1) + [*FIRST, *OTHERS][1 : self.request["num_sets"]]

    def _drawn(self, name: str | None) -> list[Any]:
        inputs = self.subject.draw()
        return inputs if name is None else replaced(inputs, lambda _, value: varied(value, name))

    def _outputs_of(self, inputs: list[Any], *, is_given: bool) -> Outputs | None:
        """Outputs on other inputs; None where the reference does not bear inputs that are not as
        given."""
        if is_given:
            return self.subject.run(inputs)
        outputs = self.subject.try_run(inputs)
        return outputs if outputs is not None and are_finite(outputs) else None

    def _other_values(self, index: int, leaf: torch.Tensor) -> Iterator[torch.Tensor]:
        """Other values for an input; possibly the same value, where there is no other."""
        fresh = leaves(self.subject.draw())[index]
        is_other = fresh.shape == leaf.shape and not torch.equal(fresh, leaf)
        yield fresh if is_other else disturbed(leaf)
        if leaf.is_floating_point():
            yield varied(leaf, "wide")

    def _ignores(self, index: int, value: torch.Tensor) -> bool:
        outputs = self.subject.try_run(
            replaced(self.inputs, lambda i, old: value if i == index else old)
        )
        return outputs is not None and self._is_within(outputs)

    def _is_within(self, outputs: Outputs) -> bool:
        pairs = zip(outputs, self.outputs, self.allowed, strict=False)
        return len(outputs) == len(self.outputs) and all(
            is_near(one, base, allowed=allowed) for one, base, allowed in pairs
        )

    def _copied(self, inputs: list[Any], outputs: Outputs) -> int | None:
        """Index of the input that all outputs are equal to, whatever its shape; None without
        one."""
        for index, leaf in enumerate(leaves(inputs)):
            sizes = {leaf.numel(), *(one.numel() for one in outputs)}
            if len(sizes) == 1 and all(
                leaf.dtype == one.dtype
                and is_near(leaf.reshape(one.shape), one, allowed=self.subject.allowed(one))
                for one in outputs
            ):
                return index
        return None


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
