"""`rewrite`: from the text that Inductor would compile to a plain module."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any, TypeGuard

from forge.data.inductor.call import Forward, read_forward
from forge.data.inductor.kernel.body import (
    Access,
    examined,
    plain,
    with_sizes_as_arguments,
    without,
)
from forge.data.inductor.module import kernel_names, write_module
from forge.data.inductor.outcome import NotRewritten, RewriteReason, Rewritten
from forge.data.inductor.readable import readable
from forge.data.inductor.source import Entry, GeneratedKernel, dotted, read
from forge.data.inductor.steps import Compute, Launch, unread_stores

MAX_ROUNDS = 20


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
    forward, kernels = _read_only(forward, kernels)
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


def _read_only(
    forward: Forward, kernels: dict[str, GeneratedKernel]
) -> tuple[Forward, dict[str, GeneratedKernel]]:
    """Forward and kernels without what reaches no output: repeated, as one store needs others."""
    accesses: dict[str, Access] = {}
    for _ in range(MAX_ROUNDS):
        for name, one in kernels.items():
            if name not in accesses:
                kernels[name], accesses[name] = examined(one)
        for step in forward.steps:
            if isinstance(step, Launch):
                step.keep(kernels[step.kernel].params)
        steps, unread = unread_stores(forward.steps, accesses, forward.outputs)
        launched = {one.kernel for one in steps if isinstance(one, Launch)}
        is_done = len(steps) == len(forward.steps) and not any(unread.values())
        forward = replace(forward, steps=steps)
        kernels = {name: one for name, one in kernels.items() if name in launched}
        for name, one in kernels.items():
            if unread[name]:
                kernels[name] = without(one, unread[name])
                del accesses[name]
        if is_done:
            break
    return forward, kernels
