# pyright: strict
"""Order of a call on several streams: what is surely over when a node begins, and other orders.

A program lists its nodes as the host called them. A card may choose any order that keeps each
stream's own and every wait (`Program.streams`): an answer that holds in one of them only is a race.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from forge.evalpool.judge.program.format import (
    Alternative,
    Choice,
    Node,
    Origin,
    Program,
    Value,
)
from forge.evalpool.judge.program.walk import tensors_of

Clock = tuple[int, ...]
"""Number of nodes of each stream that are over. What was before the call is one of stream 0."""
FEW_STREAMS, MAX_ORDERS = 3, 8
START_WORDS = "a stream uses an input without waiting for the current one, which may still write it"
END_WORDS = "the call returns and nothing waits for what this stream does"


@dataclass(frozen=True, slots=True)
class Ordered:
    """A node of `forward` with its place."""

    node: Node
    place: int
    stream: int
    clock: Clock
    """Work that is over when it begins."""


def unwaited(program: Program) -> tuple[int, str] | None:
    """Line of a node that does not wait for the beginning of the call, or for which the end does
    not wait, with the reason; None if there is none."""
    if not program.streams:
        return None
    nodes, end = _ordered(program)
    count = [1, *[0] * (len(end) - 1)]
    for one in nodes:
        if one.clock[0] == 0 and _uses_input(program, one.node):
            return one.node.line, START_WORDS
        if count[one.stream] >= end[one.stream]:
            return one.node.line, END_WORDS
        count[one.stream] += 1
    return None


def other_orders(program: Program) -> Iterator[Program]:
    """The program in other orders that a card may choose: each stream as far ahead of the next one
    as it can be, for each order of a few streams, and for some at random of many."""
    if not program.streams:
        return
    nodes, end = _ordered(program)
    draw, streams = random.SystemRandom(), range(len(end))
    if len(streams) <= FEW_STREAMS:
        ranks: Iterable[Sequence[int]] = permutations(streams)
    else:
        ranks = (draw.sample(streams, len(streams)) for _ in range(MAX_ORDERS))
    tried = {tuple(range(len(nodes)))}
    for rank in ranks:
        order = tuple(_by_rank(nodes, rank))
        if order not in tried:
            tried.add(order)
            forward = tuple(program.forward[place] for place in order)
            yield replace(program, forward=forward, streams=())


def _ordered(program: Program) -> tuple[list[Ordered], Clock]:
    """The nodes with their clocks, and the clock of the current stream at the end."""
    num = 1 + max(max(entry[:2]) for entry in program.streams)
    now = [[0] * num for _ in range(num)]
    now[0][0] = 1
    count = [1, *[0] * (num - 1)]
    times: list[list[int]] = [[-1] for _ in range(num)]
    known: list[list[Clock]] = [[tuple(one)] for one in now]
    nodes: list[Ordered] = []
    end: Clock = ()
    for time, entry in enumerate(program.streams):
        stream = entry[0]
        changed: Sequence[int] = (stream,)
        if len(entry) == 1:
            end = known[stream][-1]
            if len(nodes) < len(program.forward):
                nodes.append(Ordered(program.forward[len(nodes)], len(nodes), stream, end))
                count[stream] += 1
                now[stream][stream] = count[stream]
        else:
            _, other, since = entry
            past = known[other][bisect_left(times[other], since) - 1]
            changed = range(num) if stream < 0 else changed
            for one in changed:
                now[one] = [max(pair) for pair in zip(now[one], past, strict=True)]
        for one in changed:
            times[one].append(time)
            known[one].append(tuple(now[one]))
    return nodes, end


def _by_rank(nodes: Sequence[Ordered], rank: Sequence[int]) -> Iterator[int]:
    """Places of the nodes where one stream after the other is done, with what it waits for first.
    What the host reads stays where it is: it waits."""
    start = 0
    done = [1, *[0] * (len(rank) - 1)]
    for stop in [one.place for one in nodes if isinstance(one.node, Value)] + [len(nodes)]:
        queues = {s: [one for one in nodes[start:stop] if one.stream == s][::-1] for s in rank}
        for stream in rank:
            while queues[stream]:
                taken = _first_needed(queues, stream, done)
                done[taken] += 1
                yield queues[taken].pop().place
        if stop < len(nodes):
            done[nodes[stop].stream] += 1
            yield stop
        start = stop + 1


def _first_needed(queues: Mapping[int, Sequence[Ordered]], stream: int, done: Sequence[int]) -> int:
    """The stream whose next node may begin, and is what another one waits for, or its own."""
    while True:
        wanted = queues[stream][-1].clock
        waiting = (other for other in queues if wanted[other] > done[other])
        found = next(waiting, None)
        if found is None:
            return stream
        stream = found


def _uses_input(program: Program, node: Node) -> bool:
    """True if a node names memory of an input."""
    nodes = [node, *(inner for one in _alternatives(node) for inner in one.nodes)]
    tensors = (program.tensors[number] for one in nodes for number in tensors_of(one))
    return any(program.storages[one.storage].origin is Origin.INPUT for one in tensors)


def _alternatives(node: Node) -> tuple[Alternative, ...]:
    return node.alternatives if isinstance(node, Choice) else ()
