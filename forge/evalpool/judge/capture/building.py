# pyright: strict
"""Makes a program from what a recorder holds: unused parts left out, numbers given anew."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.dataflow import effects, storages
from forge.evalpool.judge.program.walk import renumbered, used_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The tables that a recorder's nodes refer to."""

    storages: Sequence[form.Storage]
    tensors: Sequence[form.Tensor]
    kernels: Sequence[form.Kernel]
    constants: Sequence[bytes]


def storages_of(node: form.Node, parts: Parts) -> frozenset[int]:
    return storages(parts, used_tensors(node))


def _numbers() -> defaultdict[int, int]:
    """New numbers in the order of first use."""
    return defaultdict(itertools.count().__next__)


def build(
    parts: Parts,
    *,
    init: Sequence[form.Node],
    forward: Sequence[form.Node],
    outputs: Sequence[int],
    **facts: Any,
) -> form.Program:
    """A program of these nodes; `facts` are its further fields."""
    tensors, kernels, storages, constants = (_numbers() for _ in range(4))
    new: Any = (tensors.__getitem__, kernels.__getitem__)
    kept = pruned(parts, init=init, forward=forward, outputs=outputs)
    new_init = tuple(renumbered(node, *new) for node in kept)
    new_forward = tuple(renumbered(node, *new) for node in forward)
    new_outputs = tuple(tensors[number] for number in outputs)
    old_tensors = [parts.tensors[number] for number in tensors]
    new_tensors = tuple(replace(one, storage=storages[one.storage]) for one in old_tensors)
    made_in_init = {number for node in kept for number in storages_of(node, parts)}

    def placed(number: int) -> form.Storage:
        one = parts.storages[number]
        if one.origin is form.Origin.CONSTANT:
            return replace(one, index=constants[one.index])
        if one.origin is form.Origin.ALLOCATION and number in made_in_init:
            return replace(one, section=form.Section.INIT)
        return one

    return form.Program(
        storages=tuple(map(placed, storages)),
        tensors=new_tensors,
        kernels=tuple(parts.kernels[number] for number in kernels),
        init=new_init,
        forward=new_forward,
        outputs=new_outputs,
        constants=tuple(parts.constants[number] for number in constants),
        **facts,
    )


def pruned(
    parts: Parts, *, init: Sequence[form.Node], forward: Sequence[form.Node], outputs: Sequence[int]
) -> list[form.Node]:
    """The nodes of init that matter: something later reads what they may have written."""
    live = {parts.tensors[number].storage for number in outputs}
    for node in forward:
        live |= storages_of(node, parts)
    kept: list[form.Node] = []
    for node in reversed(init):
        if isinstance(node, form.Value) or storages_of(node, parts) & live:
            kept.append(node)
            found = effects(parts, node, {})
            live = (live - found.replaces) | found.reads
    return kept[::-1]


def hoisted(parts: Parts, *, first: Sequence[form.Node], needed: Iterable[int]) -> list[form.Node]:
    """Finds the nodes of the first call whose storages a later call still uses and that depend on
    no input: weights packed at the first call, a buffer of zeros."""
    clean: list[form.Node] = []
    tainted = {
        number for number, one in enumerate(parts.storages) if one.origin is form.Origin.INPUT
    }
    for node in first:
        touched = storages_of(node, parts)
        if touched & tainted:
            origins = {number: parts.storages[number].origin for number in touched}
            tainted |= {n for n, origin in origins.items() if origin is form.Origin.ALLOCATION}
        else:
            clean.append(node)
    live = {one for one in needed if parts.storages[one].origin is form.Origin.ALLOCATION}
    kept: list[form.Node] = []
    for node in reversed(clean):
        touched = storages_of(node, parts)
        if touched & live:
            kept.append(node)
            live |= touched
    return kept[::-1]


def forgotten(parts: Parts, numbers: Collection[int]) -> Parts:
    """The same parts, where nothing supplies the content of these storages."""
    made = [
        replace(one, origin=form.Origin.ALLOCATION, index=0) if number in numbers else one
        for number, one in enumerate(parts.storages)
    ]
    return replace(parts, storages=made)


def with_one_input_each(parts: Parts) -> Parts:
    """The same parts, where tensors of earlier inputs are those of the last call's: choices that
    the first call made run on these."""
    last = {one.index: n for n, one in enumerate(parts.storages) if one.origin is form.Origin.INPUT}

    def placed(number: int) -> int:
        one = parts.storages[number]
        return last[one.index] if one.origin is form.Origin.INPUT else number

    return replace(
        parts, tensors=[replace(one, storage=placed(one.storage)) for one in parts.tensors]
    )


def is_same_call(
    parts: Parts,
    one: tuple[Sequence[form.Node], Sequence[int]],
    other: tuple[Sequence[form.Node], Sequence[int]],
    *,
    since: int,
) -> bool:
    """True if the nodes and outputs of two calls are the same; storages from `since` on belong to a
    call."""
    marks = [form.Op(name="", arguments=(), results=tuple(outputs)) for _, outputs in (one, other)]
    pairs = zip((one, other), marks, strict=True)
    first, second = (canonical(parts, [*nodes, mark], since=since) for (nodes, _), mark in pairs)
    return first == second


def canonical(parts: Parts, nodes: Sequence[form.Node], *, since: int) -> list[Any]:
    """Nodes with tensors in place of their numbers, and a call's own storages by first use; without
    their lines and what the host has read."""
    own = _numbers()

    def described(number: int) -> Any:
        tensor = parts.tensors[number]
        is_allocated = parts.storages[tensor.storage].origin is form.Origin.ALLOCATION
        is_own = is_allocated and tensor.storage >= since
        return replace(tensor, storage=-1 - own[tensor.storage] if is_own else tensor.storage)

    made = (replace(renumbered(one, described, lambda number: number), line=0) for one in nodes)
    return [replace(one, answer=None) if isinstance(one, form.Value) else one for one in made]


def flat(nodes: Sequence[form.Node]) -> list[form.Node]:
    """Nodes with the first alternative in place of each choice."""
    return [
        one
        for node in nodes
        for one in (node.alternatives[0].nodes if isinstance(node, form.Choice) else (node,))
    ]
