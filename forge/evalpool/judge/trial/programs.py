# pyright: strict
"""Holds what is captured of a candidate: its programs, their structure, answers to its host.

A program is held to its problem's form and to the policy before anything of it runs. The text of
its kernels is read as a tree.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from forge.config.schema import JudgeTable
from forge.evalpool.judge.channel.words import MAX_DETAIL_CHARACTERS, at_line
from forge.evalpool.judge.compiler.binary import Binary, Failure, FailureKind
from forge.evalpool.judge.compiler.compile import Compiler
from forge.evalpool.judge.execute.outcome import line_of, stores_to
from forge.evalpool.judge.program.dataflow import Access, Accesses
from forge.evalpool.judge.program.format import Choice, Kernel, Launch, Node, Op, Program, Section
from forge.evalpool.judge.program.ops import MOVES, kind_of
from forge.evalpool.judge.program.policy import (
    ProblemFacts,
    Refusal,
    Rule,
    judge_policy,
    judge_work,
)
from forge.evalpool.judge.program.questions import concealed, deviation, truths
from forge.evalpool.judge.program.walk import op_bytes, variants
from forge.evalpool.judge.trial import trial
from forge.evalpool.judge.trial.captures import Captured, Captures
from forge.evalpool.judge.trial.draws import Draw
from forge.evalpool.judge.trial.judgement import Device
from forge.evalpool.judge.ttir import verify
from forge.evalpool.judge.ttir.parse import InvalidModule, malformed, parse
from forge.evalpool.judge.ttir.tree import Module
from forge.evalpool.judge.wide.patterns import VALUE, about
from forge.evalpool.judge.wide.program import Narrow, at_one_stage, widened
from forge.records.reason import Reason, Status
from forge.records.verdict import LaunchFacts

MAX_LAUNCHES = 256
MAX_KERNELS = 64
"""Kernels whose accesses are remembered, each with its text: those of the last candidates, which
are captured for several input sets and often alike."""
MAX_MODULES = 2
"""Parsed texts that are remembered: those of the candidate that is judged."""
MAX_KEPT_CHARACTERS = 64 << 10
"""Longest text that is remembered; a candidate may send megabytes."""

Text: TypeAlias = "tuple[tuple[Access, ...], verify.Lookups]"
"""Access of a kernel to the memory behind each of its parameters, and its lookups."""


def _called(program: Program) -> list[Node]:
    """Nodes of one forward call; of a choice that is open, those of its first alternative."""
    nodes = next(variants(program))
    return [placed.node for placed in nodes if placed.section is Section.FORWARD]


def num_launches(program: Program) -> int:
    return sum(isinstance(node, Launch) for node in _called(program))


def store_line(program: Program, output: int) -> int:
    """The source line of the only store to an output; 0 where there are several, or none."""

    def uses(node: Launch) -> Sequence[verify.Use | None]:
        kernel = program.kernels[node.kernel]
        is_kept = len(kernel.ttir) <= MAX_KEPT_CHARACTERS
        return verify.uses_of(_kept_module(kernel.ttir), kernel.name) if is_kept else ()

    try:
        return line_of(stores_to(program, output, uses))
    except InvalidModule:
        return 0


def operation_line(program: Program, names: Collection[str], place: int) -> int:
    """The source line of operations with these names in the kernels, or of those whose results are
    stored, the first or the last one; 0 for none."""
    found = set[int]()
    for kernel in program.kernels if names else ():
        if len(kernel.ttir) > MAX_KEPT_CHARACTERS:
            return 0
        try:
            functions = _kept_module(kernel.ttir).functions.values()
        except InvalidModule:
            return 0
        for function in functions:
            made = {value: o for o in verify.operations_of(function) for value in o.results}
            stores = [o for o in verify.operations_of(function) if o.name == "tt.store"]
            chosen = [o for o in verify.operations_of(function) if o.name in names]
            if names == VALUE:
                chosen = [made[o.operands[1]] for o in stores if o.operands[1] in made]
            found |= {kernel.lines[o.index] for o in chosen if o.index < len(kernel.lines)}
    return sorted(found - {0})[place] if found - {0} else 0


def torch_share(program: Program) -> float:
    """Share of the work of `forward` that torch's operations do, the rest being the kernels'.

    Work is the bytes of the tensors that a node names; operations that only move data have none.
    """
    own = moved = 0
    for node in _called(program):
        if isinstance(node, Op) and kind_of(program, node) not in MOVES:
            moved += op_bytes(program, node)
        elif isinstance(node, Launch):
            own += op_bytes(program, node)
    return moved / max(own + moved, 1)


def launch_facts(
    program: Program, binaries: Sequence[Binary | Failure | None]
) -> tuple[LaunchFacts, ...]:
    found = list[LaunchFacts]()
    launches = [node for node in _called(program) if isinstance(node, Launch)]
    for node in launches[:MAX_LAUNCHES]:
        kernel, binary = program.kernels[node.kernel], binaries[node.kernel]
        is_compiled = isinstance(binary, Binary)
        found.append(
            LaunchFacts(
                name=kernel.name,
                grid=node.grid,
                num_warps=kernel.options.num_warps,
                num_stages=kernel.options.num_stages,
                num_bytes=op_bytes(program, node),
                num_registers=binary.num_registers if is_compiled else None,
                num_spills=binary.num_spills if is_compiled else None,
                shared_bytes=binary.shared_bytes if is_compiled else None,
            )
        )
    return tuple(found)


def text_of(kernel: Kernel) -> Text:
    """Accesses and lookups of a kernel. Raises InvalidModule."""
    is_kept = len(kernel.ttir) <= MAX_KEPT_CHARACTERS
    found = (_kept_text if is_kept else _read_text)(kernel.ttir, kernel.name)
    if (num := len(found[0])) != len(kernel.parameters):
        raise InvalidModule(
            f"{num} arguments of the function for {len(kernel.parameters)} parameters"
        )
    return found


def _read_text(ttir: str, name: str) -> Text:
    is_kept = len(ttir) <= MAX_KEPT_CHARACTERS
    module = (_kept_module if is_kept else _module)(ttir)
    with malformed():
        if name not in module.functions:
            raise InvalidModule("no function of this name")
        uses = verify.uses_of(module, name)
        return tuple(_access(use) for use in uses), verify.lookups_of(module, name)


def _module(ttir: str) -> Module:
    with malformed():
        module = parse(ttir)
        verify.verify(module)
        return module


_kept_text = lru_cache(maxsize=MAX_KERNELS)(_read_text)
_kept_module = lru_cache(maxsize=MAX_MODULES)(_module)


def _access(use: verify.Use | None) -> Access:
    is_read, is_written = (use.is_read, use.is_written) if use else (False, False)
    return (Access.READ if is_read else Access.NONE) | (Access.WRITE if is_written else Access.NONE)


NUM_AHEAD = 4
"""Kernels of a program that are compiled in its own types before it runs in float64."""
MODE_WORDS = {"gradients": "for inputs that require gradients", "eval": "after eval()"}
OF_OUTPUT = re.compile(r"\A(?!line ).*\boutput(?: (\d+))?(?:\[[\d, ]*\])?: expected ")
"""A message about an element of an output, and the output's number."""
SEQUENCES = ("list", "tuple")
"""Types that forward may return beside a tensor."""
MAX_THREADS = 1024
MAX_READ_S = 4.0
"""Time, of the judge's own, in which all kernels of a program are read; one may take a second."""
LONG_WORDS = "the kernels take too long to read: write fewer or shorter ones"
DERIVED_WORDS = (
    "parameters are loaded after __init__; define load_reference(self, state) for what you derive"
)
WRITES_INPUT = "writes to input"
"""Part of the message where `forward` writes to an input."""
VERDICTS: Mapping[Rule, tuple[Status, Reason]] = {
    Rule.OPERATION: (Status.REJECTED, Reason.UNSUPPORTED),
    Rule.OUTPUT: (Status.REJECTED, Reason.DECOY_KERNEL),
    Rule.INPUT: (Status.REJECTED, Reason.DECOY_KERNEL),
    Rule.STATE: (Status.WRONG, Reason.STATEFUL),
    Rule.INIT: (Status.WRONG, Reason.PARAMS_CACHED_IN_INIT),
    Rule.TABLE: (Status.WRONG, Reason.PARAMS_CACHED_IN_INIT),
}
"""By rule of the policy; any other is about torch's work."""


class ValuesAsked(Exception):
    """A host reads values, which a sketch does not have."""


@dataclass(slots=True, kw_only=True)
class Programs:
    """One candidate: what is captured of it, and what the judge knows of that."""

    candidate: trial.Candidate
    table: JudgeTable
    draw: Draw
    """A sketch until the first program stands."""
    problem: ProblemFacts
    captures: Captures
    compiler: Compiler
    is_on_card: bool = False
    device: Device | None = None
    """None on a sketch, before the first capture, and once the judgement is over."""
    is_written: bool = False
    """True once a call of the question that is asked has left something in an output."""
    num_launches: int = 0
    torch_share: float | None = None
    evidence: str = ""
    """Types that outputs are compared in (`Verdict`)."""
    open: tuple[trial.OpenSide, ...] = ()
    """Decisions of its kernels that took one side alone on this draw, where that is known."""
    _kept: Captured | None = None
    """Program of set 0, where it holds for every set of the same arguments."""
    _choices: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Labels of the winners of its choices, by key."""
    _gives_held: bool = field(default=False, init=False)
    """True if the candidate gets tensors of the reference that no `state_dict` has."""
    _mode: str = field(default="", init=False)
    """Mode that it is captured in: one of `HostCode.modes`, or "" for the judge's own."""

    @property
    def code(self) -> str:
        return self.candidate.code

    @property
    def phases(self) -> trial.Phases:
        return self.candidate.phases

    def on(self, draw: Draw, *, problem: ProblemFacts) -> Programs:
        """The programs of the same candidate on a draw: its first one on a sketch is that of a draw
        with the same types and shapes."""
        found = replace(self, draw=draw, problem=problem, device=None, is_written=False)
        if not draw.is_sketched_by(self.draw):
            found._kept, found.num_launches, found.torch_share = None, 0, None
            self.phases.program = None
        else:
            found._gives_held = self._gives_held
        return found

    def report(self, status: Status, reason: str, detail: str = "") -> trial.Finding:
        """A finding; an output that differs is named with the line that stores it."""
        if status is Status.WRONG and (found := OF_OUTPUT.search(detail)) and self._kept:
            program = self._kept.program
            stored = store_line(program, int(found[1] or 0))
            line = operation_line(program, *about(detail.partition("\n")[2]))
            if line and line != stored:
                detail += f"\nlook at {at_line(self.code, line, '')}"
            detail = at_line(self.code, stored or None, detail, limit=MAX_DETAIL_CHARACTERS)
        return trial.Finding(
            status=status,
            reason=reason,
            detail=detail,
            is_compiled=self.is_written,
            num_launches=self.num_launches,
            torch_share=self.torch_share,
            evidence=self.evidence,
        )

    def decided(self, status: Status, reason: str, detail: str) -> trial.Decided:
        return trial.Decided(self.report(status, reason, detail))

    def values(self, prefix: Program, *, number: int) -> list[Any]:
        """Answers the capture child: elements of tensors that the host reads, on input set
        `number`. Raises Decided, also for a prefix that breaks the policy, and ValuesAsked."""
        self._require_allowed(judge_work(prefix, self.problem, self.candidate.policy))
        if self.device is None:
            raise ValuesAsked
        return self.device.values(prefix, number=number)

    def first(self) -> Captured:
        self._kept = self._kept or self._captured(0)
        return self._kept

    def again(self, choices: Mapping[str, str]) -> Captured:
        """The program of set 0, captured again with these winners of its choices."""
        self._choices |= choices
        self._kept = self._captured(0)
        return self._kept

    def with_winners(self, number: int, winners: Mapping[str, str]) -> Captured:
        """The program for an input set where other alternatives have won. Raises Decided."""
        with self._apart(trial.ALTERNATIVE_WORDS, _choices={**self._choices, **winners}):
            return self._captured(number)

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        """Within, the first program is the one of another mode. Raises Decided."""
        words = f"{MODE_WORDS[mode]} forward does something else"
        return self._apart(words, _mode=mode, _kept=None, _choices={}, evidence="")

    @contextmanager
    def _apart(self, words: str, **changed: Any) -> Generator[None]:
        """Within, another program is captured and judged; what is said of it begins so."""
        names = {*changed, "_kept", "evidence", "num_launches", "torch_share"}
        kept = {name: getattr(self, name) for name in names}
        try:
            for name, value in changed.items():
                setattr(self, name, value)
            yield
        except trial.Decided as decided:
            detail = f"{words}: {decided.finding.detail}"
            raise trial.Decided(replace(decided.finding, detail=detail)) from decided
        finally:
            for name, value in kept.items():
                setattr(self, name, value)

    def program(self, number: int, *, is_wide: bool) -> Captured:
        """The program for an input set: captured again where the arguments differ from those of
        set 0, or the host reads values, which it then does in float64. Raises Decided."""
        kept, is_same = self.first(), self.draw.is_like_first(number)
        is_first = number == 0 and not is_wide  # captured with values of its own types
        if is_same and (is_first or not kept.reads_values):
            return kept
        found = self._captured(number)
        if is_same and (words := deviation(kept.program, found.program)):
            detail = f"values that the host reads change more than sizes: {words}"
            raise self.decided(Status.REJECTED, "unsupported", detail)
        return found

    def binaries(self, program: Program, *, is_wide: bool = False) -> list[Binary | Failure]:
        with self.phases.timed("compile"):
            return self.compiler.compile(program.kernels, program.target, is_rewritten=is_wide)

    def widened(self, program: Program) -> Program:
        """The program in float64, for a card. Raises Narrow."""
        draw = self.draw
        found = widened(
            program,
            draw.kinds,
            inputs=[draw.specs[index].dtype for index in draw.sets[0].inputs],
            parameters={name: draw.specs[index].dtype for name, index in draw.named.items()},
        )
        return at_one_stage(found)

    def require_binaries(
        self,
        program: Program,
        found: Sequence[Binary | Failure | None],
        *,
        numbers: Collection[int] | None = None,
    ) -> None:
        """Raises Decided for a kernel that is not compiled, of these or of all."""
        for number in range(len(found)) if numbers is None else numbers:
            if not isinstance(one := found[number], Failure):
                continue
            status, reason = Status.COMPILE_ERROR, Reason.NOT_TRITON
            if one.kind is FailureKind.INFRA:
                status, reason = Status.INFRA_ERROR, Reason.ZYGOTE_GONE
            elif one.kind is FailureKind.OUT_OF_RESOURCES:
                status, reason = Status.RUNTIME_ERROR, Reason.OUT_OF_RESOURCES
            detail = self.at_line(one.line, f"{program.kernels[number].name}: {one.message}")
            raise self.decided(status, reason, detail)

    def require_kernels(self, program: Program, found: Sequence[Binary | Failure | None]) -> None:
        self.require_binaries(program, found, numbers=needed_kernels(program, found))

    def at_line(self, line: int | None, message: str) -> str:
        return at_line(self.code, line or None, message)

    def _captured(self, number: int) -> Captured:
        """The candidate's program for an input set, its structure and kernels checked. Where random
        numbers of its constructor matter, and the reference's constructor draws some that no
        `state_dict` has, captured again with those. Raises Decided."""
        try:
            return self._captured_once(number)
        except trial.Decided as decided:
            is_drawn = decided.finding.reason == Reason.PARAMS_CACHED_IN_INIT
            if self._gives_held or not is_drawn or not self.draw.request["held"]:
                raise
        self._gives_held = True
        self.phases.program = None
        return self._captured_once(number)

    def _captured_once(self, number: int) -> Captured:
        captured = self.capture(number)
        program, found = captured.program, truths(captured.program)
        known = found if self._kept is None else truths(self._kept.program)
        with self.phases.timed("structure"):
            self.num_launches = num_launches(program)
            self.torch_share = torch_share(program)
            self.require_form(program, number)
            if detail := concealed(program, captured.questions):
                raise self.decided(Status.REJECTED, "unsupported", detail)
            if self.draw.has_elements(number):
                counts_checks = found != known or not captured.is_checking
                self.require_structure(program, counts_checks=counts_checks)
        self._require_able(program)
        return captured

    def _require_able(self, program: Program) -> None:
        """Raises Decided for a program with a kernel that must run and that Triton cannot compile,
        where that is asked for, or that needs more shared memory than there is. On a card, one that
        waits for no draw is compiled with its other questions; in float64 while it is drawn."""
        if self.is_on_card:
            if self.device is None and len(program.kernels) <= NUM_AHEAD:
                self.require_kernels(program, self.binaries(program))
                if self.draw.kinds:
                    with suppress(Narrow):
                        wide = self.widened(program)
                        self.compiler.begin(wide.kernels, wide.target, is_rewritten=True)
        elif self.table.compile == "binary":
            self.require_kernels(program, self.binaries(program))
        else:
            with self.phases.timed("structure"):
                found = self.compiler.too_large(program.kernels, program.target)
            self.require_kernels(program, found)

    def require_form(self, program: Program, number: int) -> None:
        """Compares what forward returned with what the reference returns on an input set: number,
        types and shapes. Raises Decided where they differ."""
        draw, forms = self.draw, self.draw.forms(number)
        tensors = [program.tensors[index] for index in program.outputs]
        own = [(tensor.dtype, tensor.shape) for tensor in tensors]
        found = ""
        if len(tensors) != len(forms):
            found = f"forward returned {len(tensors)} outputs, expected {len(forms)}"
        elif forms and program.returned not in (SEQUENCES if draw.is_sequence else ("tensor",)):
            wanted = f"a tuple of {len(forms)}" if draw.is_sequence else "a tensor"
            found = f"forward returned a {program.returned}, expected {wanted}"
        elif forms and program.nesting != draw.nesting:
            names = [one or "tensors side by side" for one in (program.nesting, draw.nesting)]
            found = f"forward returned {names[0]}, expected {names[1]}; '.' is a tensor, '-' None"
        elif own != forms:
            one, other = next(pair for pair in zip(own, forms, strict=True) if pair[0] != pair[1])
            found = f"output dtype is {one[0]}, expected {other[0]}"
            if one[1] != other[1]:
                found = f"output shape is {list(one[1])}, expected {list(other[1])}"
        if found:
            detail = f"{found}\n{draw.differences(number)}".rstrip()
            raise self.decided(Status.WRONG, Reason.SHAPE, detail)

    def require_structure(self, program: Program, *, counts_checks: bool = False) -> None:
        """Holds the kernels' text and the program's dataflow to the policy. Raises Decided; the
        finding names the node and the source line."""
        if not num_launches(program):
            detail = "forward launches no kernel of its own"
            raise self.decided(Status.REJECTED, Reason.NO_KERNEL_LAUNCH, detail)
        self._require_threads(program)
        found = self._texts(program)
        accesses = {index: access for index, (access, _) in enumerate(found)}
        lookups = {index: looked_up for index, (_, looked_up) in enumerate(found)}
        policy = self.candidate.policy
        self._require_allowed(
            judge_policy(
                program, self.problem, policy, accesses, lookups, counts_checks=counts_checks
            )
        )

    def accesses(self, program: Program) -> Accesses:
        """Accesses of a program's kernels, by index. Raises Decided for text that is no TTIR."""
        return {index: access for index, (access, _) in enumerate(self._texts(program))}

    def _texts(self, program: Program) -> list[Text]:
        """Accesses and lookups of each kernel; a text that several have is read once."""
        known: dict[tuple[str, int], Text] = {}
        began = time.thread_time()
        for kernel in program.kernels:
            if time.thread_time() - began > MAX_READ_S:
                raise self.decided(Status.REJECTED, Reason.UNSUPPORTED, LONG_WORDS)
            key = kernel.ttir, len(kernel.parameters)
            try:
                known[key] = known.get(key) or text_of(kernel)
            except InvalidModule as error:
                detail = f"kernel {kernel.name}: {error}"
                raise self.decided(Status.COMPILE_ERROR, Reason.NOT_TRITON, detail) from error
        return [known[kernel.ttir, len(kernel.parameters)] for kernel in program.kernels]

    def _require_threads(self, program: Program) -> None:
        """No card launches more threads of a block; an evaluator would run any number of warps. An
        autotuner leaves such a configuration out."""
        warp_size = int(program.target.rpartition(":")[2])
        launched = {node.kernel for node in program.nodes if isinstance(node, Launch)}
        for kernel in (program.kernels[number] for number in sorted(launched)):
            if (num := kernel.options.num_warps * warp_size) > MAX_THREADS:
                detail = f"kernel {kernel.name}: {num} threads in a block; a card has {MAX_THREADS}"
                raise self.decided(Status.RUNTIME_ERROR, Reason.OUT_OF_RESOURCES, detail)

    def _require_allowed(self, refusal: Refusal | None) -> None:
        if refusal is None:
            return
        default = Status.REJECTED, Reason.TORCH_WORK
        (status, reason), message = VERDICTS.get(refusal.rule, default), refusal.message
        if refusal.rule is Rule.INIT:
            message = f"{message}\n{DERIVED_WORDS}"
        if refusal.rule is Rule.STATE and WRITES_INPUT in message:
            reason = Reason.INPUTS_MODIFIED
        raise self.decided(status, reason, self.at_line(refusal.line, message))

    def capture(self, number: int, *, is_first: bool = False) -> Captured:
        """The program for an input set, or of its first call. Raises Decided."""
        return self.captures.capture(
            self.code,
            {
                **self.draw.request,
                "choices": self._choices,
                "gives_held": self._gives_held,
                "is_first": is_first,
                "mode": self._mode,
                "is_pure": self.candidate.protocol is None,
            },
            entry_point=self.candidate.entry_point,
            phases=self.phases,
            answers=self.values,
            number=number,
        )


def needed_kernels(program: Program, binaries: Sequence[Binary | Failure | None]) -> list[int]:
    """Kernels without which a program cannot run: those outside of choices, and those of the first
    alternative of a choice whose alternatives all fail."""

    def needed(nodes: Iterable[Node]) -> Iterator[int]:
        for node in nodes:
            if isinstance(node, Launch):
                yield node.kernel
            elif isinstance(node, Choice):
                kernels = [[*needed(one.nodes)] for one in node.alternatives]
                if all(any(isinstance(binaries[one], Failure) for one in each) for each in kernels):
                    yield from kernels[0]

    return [*needed(program.nodes)]
