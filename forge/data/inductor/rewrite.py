"""`rewrite`: from the text that Inductor would compile to a plain module."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any, TypeGuard

from forge.data.inductor.call import Forward, read_forward
from forge.data.inductor.kernel.body import (
    plain,
    with_sizes_as_arguments,
    with_used_parameters,
)
from forge.data.inductor.module import kernel_names, write_module
from forge.data.inductor.readable import readable
from forge.data.inductor.source import (
    Entry,
    GeneratedKernel,
    NotRewritten,
    RewriteReason,
    Rewritten,
    dotted,
    read,
)
from forge.data.inductor.steps import Compute, Launch, needed


def rewrite(code: str, entry: Entry, labels: dict[str, str]) -> Rewritten:
    """The plain module of a problem. Deterministic.

    Args:
        code: The text that Inductor would compile.
        entry: The problem, and how its forward calls the code.
        labels: Names for people of the symbols of sizes.

    Raises:
        NotRewritten: a form of code that is not known.
    """
    answer = read(code)
    kernels = {one.name: plain(one) for one in answer.kernels.values()}
    forward = read_forward(answer, entry, kernels, labels)
    kernels = {name: _sized(one, forward) for name, one in kernels.items()}
    kernels = {name: with_used_parameters(one) for name, one in kernels.items()}
    for step in forward.steps:
        if isinstance(step, Launch):
            step.keep(kernels[step.kernel].params)
    forward = replace(forward, steps=needed(forward.steps, forward.outputs))
    launched = {one.kernel for one in forward.steps if isinstance(one, Launch)}
    kernels = {name: one for name, one in kernels.items() if name in launched}
    if not kernels:
        raise NotRewritten(RewriteReason.NO_KERNEL, "no launch reaches a returned value")
    forward, kernels = readable(forward, kernels)
    library = [dotted(one.call.func) for one in forward.steps if _is_operation(one)]
    return Rewritten(
        code=write_module(answer, entry, kernels, forward),
        policy="hybrid" if library else "own",
        kernels=tuple(kernel_names(kernels).values()),
        products=sum(one.heuristic.kind == "template" for one in kernels.values()),
    )


def _is_operation(step: object) -> TypeGuard[Any]:
    return isinstance(step, Compute) and isinstance(step.call, ast.Call)


def _sized(kernel: GeneratedKernel, forward: Forward) -> GeneratedKernel:
    """The kernel with sizes from its arguments, where all launches pass the same number."""
    passed: dict[str, set[object]] = {}
    for step in forward.steps:
        if isinstance(step, Launch) and step.kernel == kernel.name:
            for name, value in step.arguments.items():
                number = value.value if isinstance(value, ast.Constant) else None
                passed.setdefault(name, set()).add(number)
    sizes = {name: one.pop() for name, one in passed.items() if len(one) == 1}
    return with_sizes_as_arguments(
        kernel, {name: size for name, size in sizes.items() if isinstance(size, int)}
    )
