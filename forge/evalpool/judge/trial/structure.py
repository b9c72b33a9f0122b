# pyright: strict
"""Holds a program's structure to the policy, before anything of it runs."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from forge.evalpool.judge.channel.words import at_line
from forge.evalpool.judge.compiler.binary import Binary, Failure, FailureKind
from forge.evalpool.judge.execute.stores import line_of, stores_to
from forge.evalpool.judge.program.dataflow import Access
from forge.evalpool.judge.program.format import Launch, Op, Section
from forge.evalpool.judge.program.ops import MOVES, kind_of
from forge.evalpool.judge.program.policy import (
    Policy,
    ProblemFacts,
    Refusal,
    Rule,
    judge_policy,
    judge_work,
)
from forge.evalpool.judge.program.walk import op_bytes, variants
from forge.evalpool.judge.trial.trial import DERIVED_WORDS, Decided
from forge.evalpool.judge.ttir.parse import parse
from forge.evalpool.judge.ttir.scan import InvalidModule, malformed
from forge.evalpool.judge.ttir.verify import (
    Lookups,
    Use,
    lookups_of,
    operations_of,
    uses_of,
    verify,
)
from forge.evalpool.judge.wide.patterns import VALUE
from forge.records.reason import Reason, Status
from forge.records.verdict import LaunchFacts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from forge.evalpool.judge.program.dataflow import Accesses
    from forge.evalpool.judge.program.format import Kernel, Program
    from forge.evalpool.judge.trial.checks import Report
    from forge.evalpool.judge.trial.trial import Finding
    from forge.evalpool.judge.ttir.tree import Module

MAX_THREADS = 1024
"""Threads of a block."""
WRITES_INPUT = "writes to input"
"""Part of the message where `forward` writes to an input."""
MAX_LAUNCHES = 256
"""Launches of a call that a profile has."""
MAX_KERNELS = 64
"""Kernels whose accesses are remembered, each with its text: those of the last candidates, which
are captured for several input sets and often alike."""
MAX_MODULES = 2
"""Parsed texts that are remembered: those of the candidate that is judged."""
MAX_KEPT_CHARACTERS = 64 << 10
"""Longest text that is remembered; a candidate may send megabytes."""

MAX_READ_S = 4.0
"""Time in which all kernels of a program are read. It is the judge's own, and each kernel may take
a second or two of it."""
LONG_WORDS = "the kernels take too long to read: write fewer or shorter ones"

Text: TypeAlias = "tuple[tuple[Access, ...], Lookups]"
"""Access of a kernel to the memory behind each of its parameters, and its lookups."""

VERDICTS: Mapping[Rule, tuple[Status, Reason]] = {
    Rule.OPERATION: (Status.REJECTED, Reason.UNSUPPORTED),
    Rule.OUTPUT: (Status.REJECTED, Reason.DECOY_KERNEL),
    Rule.INPUT: (Status.REJECTED, Reason.DECOY_KERNEL),
    Rule.STATE: (Status.WRONG, Reason.STATEFUL),
    Rule.INIT: (Status.WRONG, Reason.PARAMS_CACHED_IN_INIT),
    Rule.TABLE: (Status.WRONG, Reason.PARAMS_CACHED_IN_INIT),
    Rule.HEAVY: (Status.REJECTED, Reason.TORCH_WORK),
    Rule.RANDOM: (Status.REJECTED, Reason.TORCH_WORK),
    Rule.MOVES: (Status.REJECTED, Reason.TORCH_WORK),
    Rule.INDEX: (Status.REJECTED, Reason.TORCH_WORK),
    Rule.COMBINE: (Status.REJECTED, Reason.TORCH_WORK),
}


def num_launches(program: Program) -> int:
    """Launches of one forward call; of a choice that is open, those of its first alternative."""
    nodes = next(variants(program))
    return sum(
        isinstance(placed.node, Launch) and placed.section is Section.FORWARD for placed in nodes
    )


def require_structure(
    program: Program,
    facts: ProblemFacts,
    *,
    code: str,
    finding: Report,
    policy: Policy = "own",
    counts_checks: bool = False,
) -> None:
    """Checks the kernels' text and the program's dataflow.

    Raises:
        Decided: a rule is broken; its finding names the node and the source line.
    """
    if num_launches(program) == 0:
        detail = "forward launches no kernel of its own"
        raise Decided(finding(Status.REJECTED, "no_kernel_launch", detail))
    _require_threads(program, finding=finding)
    found = _read_all(program, finding=finding)
    accesses = {index: access for index, (access, _) in enumerate(found)}
    lookups = {index: looked_up for index, (_, looked_up) in enumerate(found)}
    refusal = judge_policy(program, facts, policy, accesses, lookups, counts_checks=counts_checks)
    if refusal is not None:
        raise Decided(_refused(refusal, code=code, report=finding))


def _require_threads(program: Program, *, finding: Report) -> None:
    """No card launches more threads of a block; an evaluator would run any number of warps. An
    autotuner leaves such a configuration out."""
    warp_size = int(program.target.rpartition(":")[2])
    launched = {node.kernel for node in program.nodes if isinstance(node, Launch)}
    for kernel in (program.kernels[number] for number in sorted(launched)):
        if (num := kernel.options.num_warps * warp_size) > MAX_THREADS:
            detail = f"kernel {kernel.name}: {num} threads in a block; a card has {MAX_THREADS}"
            raise Decided(finding(Status.RUNTIME_ERROR, Reason.OUT_OF_RESOURCES, detail))


def accesses_of(program: Program, *, finding: Report) -> Accesses:
    """Accesses of a program's kernels, by their index. Raises Decided for text that is no TTIR."""
    return {index: access for index, (access, _) in enumerate(_read_all(program, finding=finding))}


def _read_all(program: Program, *, finding: Report) -> list[Text]:
    """Accesses and lookups of each kernel. Each text is read once, however many kernels of other
    options have it."""
    known: dict[str, Text] = {}
    began = time.thread_time()
    for kernel in program.kernels:
        if time.thread_time() - began > MAX_READ_S:
            raise Decided(finding(Status.REJECTED, Reason.UNSUPPORTED, LONG_WORDS))
        try:
            if kernel.ttir not in known:
                known[kernel.ttir] = text_of(kernel)
            _require_parameters(kernel, known[kernel.ttir][0])
        except InvalidModule as error:
            detail = f"kernel {kernel.name}: {error}"
            raise Decided(finding(Status.COMPILE_ERROR, "not_triton", detail)) from error
    return [known[kernel.ttir] for kernel in program.kernels]


def require_work(
    prefix: Program, facts: ProblemFacts, *, code: str, finding: Report, policy: Policy
) -> None:
    """Checks the operations of a part of a program. Raises Decided as `require_structure`."""
    refusal = judge_work(prefix, facts, policy)
    if refusal is not None:
        raise Decided(_refused(refusal, code=code, report=finding))


def _refused(refusal: Refusal, *, code: str, report: Report) -> Finding:
    status, reason = VERDICTS[refusal.rule]
    message = refusal.message
    if refusal.rule is Rule.INIT:
        message = f"{message}\n{DERIVED_WORDS}"
    if refusal.rule is Rule.STATE and WRITES_INPUT in message:
        reason = Reason.INPUTS_MODIFIED
    return report(status, reason, at_line(code, refusal.line or None, message))


def store_line(program: Program, output: int) -> int:
    """The source line of the only store to an output; 0 where there are several, or none."""

    def uses(node: Launch) -> Sequence[Use | None]:
        kernel = program.kernels[node.kernel]
        is_kept = len(kernel.ttir) <= MAX_KEPT_CHARACTERS
        return uses_of(_kept_module(kernel.ttir), kernel.name) if is_kept else ()

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
            made = {value: o for o in operations_of(function) for value in o.results}
            stores = [o for o in operations_of(function) if o.name == "tt.store"]
            chosen = [o for o in operations_of(function) if o.name in names]
            if names == VALUE:
                chosen = [made[o.operands[1]] for o in stores if o.operands[1] in made]
            found |= {kernel.lines[o.index] for o in chosen if o.index < len(kernel.lines)}
    return sorted(found - {0})[place] if found - {0} else 0


def torch_share(program: Program) -> float:
    """Share of the work of `forward` that torch's operations do, the rest being the kernels'.

    Work is the bytes of the tensors that a node names; operations that only move data have none.
    """
    own = moved = 0
    for placed in next(variants(program)):
        if placed.section is not Section.FORWARD:
            continue
        if isinstance(placed.node, Op) and kind_of(program, placed.node) not in MOVES:
            moved += op_bytes(program, placed.node)
        elif isinstance(placed.node, Launch):
            own += op_bytes(program, placed.node)
    return moved / max(own + moved, 1)


def launch_facts(
    program: Program, binaries: Sequence[Binary | Failure | None]
) -> tuple[LaunchFacts, ...]:
    """The launches of one forward call, of the first alternatives, with what their compilation
    gave."""
    found = list[LaunchFacts]()
    for placed in next(variants(program)):
        node = placed.node
        if not isinstance(node, Launch) or placed.section is not Section.FORWARD:
            continue
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
        if len(found) == MAX_LAUNCHES:
            break
    return tuple(found)


def compile_finding(failure: Failure, kernel: Kernel, *, code: str, report: Report) -> Finding:
    """The finding for a kernel without a binary."""
    detail = at_line(code, failure.line or None, f"{kernel.name}: {failure.message}")
    match failure.kind:
        case FailureKind.INFRA:
            return report(Status.INFRA_ERROR, "zygote_gone", detail)
        case FailureKind.OUT_OF_RESOURCES:
            return report(Status.RUNTIME_ERROR, "out_of_resources", detail)
        case _:
            return report(Status.COMPILE_ERROR, "not_triton", detail)


def text_of(kernel: Kernel) -> Text:
    """Accesses and lookups of a kernel. Raises InvalidModule."""
    is_kept = len(kernel.ttir) <= MAX_KEPT_CHARACTERS
    return (_kept_text if is_kept else _read_text)(kernel.ttir, kernel.name)


def _require_parameters(kernel: Kernel, found: Sequence[Access]) -> None:
    if len(found) != len(kernel.parameters):
        message = f"{len(found)} arguments of the function for {len(kernel.parameters)} parameters"
        raise InvalidModule(message)


def _read_text(ttir: str, name: str) -> Text:
    is_kept = len(ttir) <= MAX_KEPT_CHARACTERS
    module = (_kept_module if is_kept else _module)(ttir)
    with malformed():
        if name not in module.functions:
            raise InvalidModule("no function of this name")
        uses = uses_of(module, name)
        return tuple(_access(use) for use in uses), lookups_of(module, name)


def _module(ttir: str) -> Module:
    """Raises InvalidModule."""
    with malformed():
        module = parse(ttir)
        verify(module)
        return module


_kept_text = lru_cache(maxsize=MAX_KERNELS)(_read_text)
_kept_module = lru_cache(maxsize=MAX_MODULES)(_module)


def _access(use: Use | None) -> Access:
    if use is None:
        return Access.NONE
    found = Access.NONE
    if use.is_read or use.is_atomic:
        found |= Access.READ
    if use.is_written or use.is_atomic:
        found |= Access.WRITE
    return found
