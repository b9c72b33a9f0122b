"""The program of a first call on a card, where an autotuner's benchmarks run before the winner.

Called by `trial/judgement.py`. `triton.autotune` runs each configuration on the call's own tensors
and puts back those alone that `reset_to_zero`, `restore_value` or a hook names. A kernel that reads
what it writes (`tl.atomic_add`, in place) finds what its benchmarks left in the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program import limits
from forge.evalpool.judge.program.dataflow import Accesses, effects, storages
from forge.evalpool.judge.program.walk import places, tensor_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCall:
    """A program whose configurations run twice."""

    program: form.Program
    words: str
    """The cause why that may matter, and what to do, in a line."""
    line: int


def first_call(program: form.Program, accesses: Accesses) -> FirstCall | None:
    """The program of a first call; None where no benchmark leaves anything that a kernel reads.

    A choice that was made in `init` is settled in `forward`.
    """
    if sum(1 for _ in places(program)) > limits.MAX_NODES // 4:
        return None
    settled = {node.key for node in program.init if isinstance(node, form.Choice)}
    words, line = "", 0
    tensors, stored, nodes = list(program.tensors), list(program.storages), list(program.forward)
    for place, node in enumerate(program.forward):
        if not isinstance(node, form.Choice) or node.key in settled or len(node.alternatives) == 1:
            continue
        cause = next(filter(None, (_left(program, one, accesses) for one in node.alternatives)), "")
        if not cause:
            continue
        if not words:
            words, line = cause, node.line
        twice = tuple(_twice(one, tensors, stored) for one in node.alternatives)
        nodes[place] = replace(node, alternatives=twice)
    if not words:
        return None
    made = replace(program, tensors=tuple(tensors), storages=tuple(stored), forward=tuple(nodes))
    return FirstCall(program=made, words=words, line=line)


def _left(program: form.Program, one: form.Alternative, accesses: Accesses) -> str:
    """Names a kernel of an alternative, and the arguments that it reads and writes unrestored."""
    restored = storages(program, one.restored)
    for node in one.nodes:
        if not isinstance(node, form.Launch):
            continue
        found = effects(program, node, accesses)
        both = (found.reads & found.writes) - restored
        if both:
            kernel = program.kernels[node.kernel]
            pairs = zip(node.arguments, kernel.parameters, strict=False)
            names = ", ".join(
                repr(parameter.name)
                for argument, parameter in pairs
                if isinstance(argument, form.TensorUse | form.Descriptor)
                and program.tensors[argument.tensor].storage in both
            )
            return (
                f"kernel {kernel.name}: triton.autotune runs every configuration on the same "
                f"tensors, and what they leave in {names} changes the first call on a card; "
                f"use reset_to_zero=[{names}] or restore_value=[{names}]"
            )
    return ""


def _twice(
    one: form.Alternative, tensors: list[form.Tensor], stored: list[form.Storage]
) -> form.Alternative:
    """An alternative after its own benchmark. Copies of what is restored enter the tables."""
    before: list[form.Op] = []
    behind: list[form.Op] = []
    for number in one.restored:
        tensor, copy = tensors[number], len(tensors)
        steps = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
        tensors.append(replace(tensor, storage=len(stored), offset=0, strides=steps))
        stored.append(form.Storage(num_bytes=tensor_bytes(tensor), origin=form.Origin.ALLOCATION))
        use, kept = form.TensorUse(tensor=number), form.TensorUse(tensor=copy)
        before.append(form.Op(name="aten.clone.default", arguments=(use,), results=(copy,)))
        behind.append(form.Op(name="aten.copy_.default", arguments=(use, kept), results=(number,)))
    return replace(one, nodes=(*before, *one.nodes, *behind, *one.nodes))
