"""`rewrite`: from the text that Inductor would compile to a plain module."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace

from forge.data.harvest.records import Answered, Unanswered
from forge.data.inductor.call import Compute, Forward, Launch, needed, read_forward
from forge.data.inductor.kernel import plain, with_sizes_as_arguments, with_used_parameters
from forge.data.inductor.module import kernel_names, write_module
from forge.data.inductor.readable import readable
from forge.data.inductor.source import GeneratedKernel, Traced, dotted, read

SMALL = 16
"""Largest number that is taken for no size: kernels of convolutions, axes, factors. A grid and the
shape of a result have no such numbers."""
BLOCKS = ("BLOCK", "num_warps", "num_stages", "GROUP")
"""Parts of names of keywords that are no sizes of tensors."""


def rewrite(traced: Traced) -> Answered:
    """The plain module of a problem. Deterministic. Raises Unanswered for a form of code that is
    not known."""
    answer = read(traced.code)
    kernels = {one.name: plain(one) for one in answer.kernels.values()}
    forward = read_forward(answer, traced, kernels)
    kernels = {name: with_used_parameters(_sized(one, forward)) for name, one in kernels.items()}
    for step in forward.steps:
        if isinstance(step, Launch):
            step.keep(kernels[step.kernel].params)
    forward = replace(forward, steps=needed(forward.steps, forward.outputs))
    launched = {one.kernel for one in forward.steps if isinstance(one, Launch)}
    kernels = {name: one for name, one in kernels.items() if name in launched}
    if not kernels:
        raise Unanswered("no kernel", "no launch reaches a returned value")
    forward, kernels = readable(forward, kernels)
    code = write_module(answer, traced, kernels, forward)
    calls = (one.call for one in forward.steps if isinstance(one, Compute))
    return Answered(
        code=code,
        policy="hybrid" if any(isinstance(one, ast.Call) for one in calls) else "own",
        kernels=tuple(kernel_names(kernels).values()),
        products=sum(one.kind == "template" for one in kernels.values()),
        literals=tuple(size_literals(code, traced.sizes)),
    )


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


def size_literals(code: str, sizes: Collection[int]) -> list[str]:
    """Numbers above `SMALL` in kernels and in `forward` that equal a size, each with its line.

    Blocks of a launch are left out: keywords like `BLOCK_M=64`, and the block in `triton.cdiv`.
    """
    lines, tree = code.splitlines(), ast.parse(code)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [
        f"{number.value}: {lines[number.lineno - 1].strip()[:80]}"
        for node in [*tree.body, *(one for owner in classes for one in owner.body)]
        if isinstance(node, ast.FunctionDef) and node.name != "__init__"
        for number in _numbers(node)
        if number.value in sizes
    ]


def _numbers(node: ast.AST) -> Iterator[ast.Constant]:
    match node:
        case ast.Constant(value=value):
            if type(value) is int and value > SMALL:
                yield node
        case ast.keyword(arg=str(name)) if any(one in name for one in BLOCKS):
            pass
        case ast.Call(args=[first, *_]) if dotted(node.func) == "triton.cdiv":
            yield from _numbers(first)
        case _:
            match node:
                case (
                    ast.Call(func=ast.Subscript(slice=ast.Tuple(elts=direct)))
                    | ast.Call(func=ast.Attribute(attr="empty"), args=[ast.Tuple(elts=direct), *_])
                ):
                    small = [one for one in direct if isinstance(one, ast.Constant)]
                    yield from (x for x in small if type(x.value) is int and 1 < x.value <= SMALL)
            for child in ast.iter_child_nodes(node):
                yield from _numbers(child)
