"""Runs launches of TTIR kernels in numpy: all instances of a grid at once, in slabs.

    launch(plan, "kernel", (64, 1, 1), [Address(0), 128, 1.0], memory)  ->  Report

Instances run side by side in groups (`plan`). A kernel whose instances wait for each
other (spin locks, look-back scans) runs one instance after the other instead; one that waits yields
to the next.

Races and uninitialised reads are suspicions: the caller confirms them by another launch, with
another `Order` of the instances or another poison, whose outputs differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forge.evalpool.judge.ttir.decisions import Decision
from forge.evalpool.judge.ttir.memory.storages import Fault, FaultKind, Group, Launch, Memory
from forge.evalpool.judge.ttir.plan import FunctionPlan, ModulePlan, Run, run_function
from forge.evalpool.judge.ttir.steps import TensorDescriptor
from forge.evalpool.judge.ttir.tree import Descriptor, Pointer, Scalar, Type
from forge.evalpool.judge.ttir.values import Array, Unsupported, dtype_of, round_to

SLAB_ELEMENTS = 1 << 18
"""Elements of the largest block of all instances of a slab: 1 MB of float32 stays in the cache."""
MAX_SLAB = 1 << 14
"""Instances of a slab."""
MAX_SERIAL = 1 << 16
"""Instances of a launch that runs one instance after the other."""
SMALL_SLAB = 4
"""Instances of a slab in the reversed order."""
SHUFFLED_SLAB = 64
"""Instances of a slab in a random order, which many calls may try."""
FEWEST_SLABS = 8
"""Slabs of a random order, where there are as many instances."""
FUEL = 8_000_000
"""Steps of one launch: about a minute."""


class Order(StrEnum):
    NATURAL = "natural"
    REVERSED = "reversed"
    """A few at a time, from the last to the first; so are the lanes of a store."""
    SHUFFLED = "shuffled"
    """A few at a time, in a random order; the lanes of a store from the last to the first."""


@dataclass(frozen=True, slots=True)
class Address:
    """A pointer argument: a byte of one of the program's storages; None is the null pointer."""

    storage: int | None
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDescriptor:
    base: Address
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    padding: float = 0.0


Argument: TypeAlias = Address | HostDescriptor | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    num_bytes: int
    """Loaded and stored by all active lanes."""
    suspicions: tuple[Fault, ...]
    """Races, orders and uninitialised reads that are not confirmed."""


def launch(
    plan: ModulePlan,
    name: str,
    grid: tuple[int, int, int],
    arguments: Sequence[Argument],
    memory: Memory,
    *,
    order: Order = Order.NATURAL,
    fuel: int = FUEL,
    num_resident: int = 1 << 31,
    num_warps: int = 4,
    seen: dict[Decision, int] | None = None,
    key: int | None = None,
) -> Report:
    """Runs a kernel on the storages of `memory`.

    Args:
        num_resident: instances that a card holds at once: the others begin once one of these has
            ended. It counts where instances wait for each other and begin in their natural order,
            in which a card begins them.
        num_warps: warps of an instance: the threads of one see each other's stores.
        seen: sides of decisions that were taken so far; gets those of this launch.
        key: of this launch, which the program repeats on other inputs.

    Raises:
        Faulted: an access is out of bounds or misaligned. Earlier stores have happened.
        Unsupported: the evaluator cannot run it.
    """
    function = plan.functions[name]
    total = grid[0] * grid[1] * grid[2]
    if total >= 1 << 31:
        raise Unsupported(f"{total} instances")
    is_serial = plan.has_spins and total > 1
    is_first = order is Order.NATURAL
    written, read, reachable = frozenset[int](), frozenset[int](), frozenset[int]()
    for argument, use in zip(arguments, plan.uses(name), strict=True):
        address = argument.base if isinstance(argument, HostDescriptor) else argument
        if isinstance(address, Address) and address.storage is not None:
            pointed = frozenset({address.storage})
            reachable |= pointed
            written |= pointed if use is not None and use.is_written else frozenset()
            read |= pointed if use is not None and use.is_read else frozenset()
    one = Launch(
        memory=memory,
        grid=grid,
        reachable=reachable,
        watched=written,
        relayed=written & read if is_first and num_warps > 1 else frozenset(),
        is_racing=is_first and total > 1 and plan.ordering is None,
        compares_lanes=is_first and plan.ordering is None,
        reverses_lanes=not is_first,
        fuel=fuel,
        is_serial=is_serial,
        seen={} if seen is None else seen,
    )
    if key is not None and is_first and not is_serial:
        one.tape = memory.tape(key, function.fixed)
    kinds = function.function.arguments
    if len(kinds) != len(arguments):
        raise Unsupported(f"{len(arguments)} arguments for {len(kinds)} parameters")
    values = [_value(kind, each, memory) for kind, each in zip(kinds, arguments, strict=True)]
    with np.errstate(all="ignore"):
        if is_serial:
            most = num_resident if is_first else total
            _run_serially(function, values, one, total, order, most=most)
        else:
            for ids in _slabs(plan, total, order):
                for _ in run_function(function, values, Group(launch=one, ids=ids)):
                    pass
    one.tape.is_whole = True
    if is_first and total > 1 and plan.ordering is not None:
        first = plan.ordering
        facts: Any = {"operation": first.name, "index": first.index, "line": first.line}
        one.suspect(Fault(kind=FaultKind.ORDER, **facts))
    for number in one.watched:
        memory.storages[number].settle()
    return Report(num_bytes=one.num_bytes, suspicions=tuple(one.suspicions))


def _slabs(plan: ModulePlan, total: int, order: Order) -> Iterator[NDArray[np.int32]]:
    size = max(1, min(SLAB_ELEMENTS // plan.max_elements, MAX_SLAB))
    if order is Order.NATURAL:
        for first in range(0, total, size):
            yield np.arange(first, min(first + size, total), dtype=np.int32)
        return
    if order is Order.SHUFFLED:
        shuffled = np.random.default_rng().permutation(np.arange(total, dtype=np.int32))
        size = max(1, min(size // 2, SHUFFLED_SLAB, total // FEWEST_SLABS))
        yield from (shuffled[first : first + size] for first in range(0, total, size))
        return
    size = max(1, min(size // 2, SMALL_SLAB, total // 2))
    for last in range(total, 0, -size):
        yield np.arange(max(last - size, 0), last, dtype=np.int32)[::-1].copy()


def _run_serially(
    function: FunctionPlan, values: list[Any], one: Launch, total: int, order: Order, *, most: int
) -> None:
    """Each instance until it ends or waits; those that wait, `most` of them, take turns."""
    if total > MAX_SERIAL:
        raise Unsupported(f"{total} instances that wait for each other")
    ids = list(range(total))
    if order is Order.REVERSED:
        ids.reverse()
    elif order is Order.SHUFFLED:
        random.shuffle(ids)
    waiting: list[tuple[Run, int]] = []
    for number in ids:
        num_rounds = 0
        while len(waiting) >= most:
            waiting = _round(waiting, one)
            num_rounds += 1
            if num_rounds > MAX_ROUNDS:
                words = f"{most} programs, as many as a card holds, wait for others to begin"
                raise Unsupported(words)
        run = run_function(function, values, Group(launch=one, ids=np.array([number], np.int32)))
        waiting += _going_on(run, one)
    while waiting:
        waiting = _round(waiting, one)


def _round(waiting: list[tuple[Run, int]], one: Launch) -> list[tuple[Run, int]]:
    """Gives each instance a turn. Returns those that still wait, in the opposite order: chains of
    instances end in one round, however they lie."""
    still: list[tuple[Run, int]] = []
    for run, depth in reversed(waiting):
        one.depth = depth
        still += _going_on(run, one)
    return still


MAX_ROUNDS = 50
"""Turns of all instances that a card holds in which one of them must end."""
PATIENCE = 2
"""Times that an instance may ask again before the next one has its turn."""


def _going_on(run: Run, one: Launch) -> list[tuple[Run, int]]:
    """Runs an instance for a while. Returns it with its depth, unless it has ended."""
    ended = object()
    left = not any(next(run, ended) is ended for _ in range(PATIENCE))
    found = [(run, one.depth)] if left else []
    one.depth = 0
    return found


def _value(kind: Type, argument: Argument, memory: Memory) -> Any:
    if isinstance(kind, Pointer) and isinstance(argument, Address):
        return _address(argument, memory)
    if isinstance(kind, Descriptor) and isinstance(argument, HostDescriptor):
        return TensorDescriptor(
            base=_address(argument.base, memory),
            shape=tuple(np.array([size], np.int64) for size in argument.shape),
            strides=tuple(np.array([stride], np.int64) for stride in argument.strides),
            padding=argument.padding,
        )
    if isinstance(kind, Scalar) and not isinstance(argument, (Address, HostDescriptor)):
        return _scalar(kind, argument)
    raise Unsupported(f"argument {argument} for a parameter of type {kind}")


def _address(argument: Address, memory: Memory) -> Array:
    number = argument.storage
    found = 0 if number is None else memory.address(number, argument.offset)
    return np.array([found], np.int64)


def _scalar(kind: Scalar, value: float) -> Array:
    dtype = dtype_of(kind)
    if kind.is_float:
        array = np.array([value], dtype)
        return round_to(array, "bf16") if kind.name == "bf16" else array
    if kind.name == "i1":
        return np.array([bool(value)])
    return np.array([int(value) & ((1 << 64) - 1)], np.uint64).astype(dtype)
