"""Sources of the contents of storages, along a straight-line list of nodes (`walk.variants`).

A storage is one place here: a write to a part of it adds to its content, a write to all of it
replaces the content. A launch reads and writes what its pointer arguments name; callers that know
more (from TTIR) pass an `Access` for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Flag
from typing import NamedTuple, Protocol, TypeAlias

from forge.evalpool.judge.program import format as form
from forge.evalpool.judge.program.limits import MAX_INPUTS, MAX_NODES
from forge.evalpool.judge.program.ops import MOVES, Kind, bind, kind_of, packet, schemas
from forge.evalpool.judge.program.walk import Placed, places, tensor_bytes, tensors_in, tensors_of


class Access(Flag):
    """Use that a kernel may make of the memory behind one of its parameters."""

    NONE = 0
    READ = 1
    WRITE = 2
    BOTH = 3


Accesses: TypeAlias = Mapping[int, Sequence[Access]]
"""For kernels by index, an `Access` for each parameter. A kernel that is absent does both."""


class Lookup(NamedTuple):
    """A choice of a kernel; parameters are bits of integers."""

    tables: int
    """Parameters whose memory it chooses from."""
    by: int
    """Parameters whose memory chooses: a place, or whether the tables are used at all."""
    targets: int
    """Parameters to whose memory what was computed from the tables alone is stored; 0 for a value
    in the kernel."""
    is_place: bool


Lookups: TypeAlias = Mapping[int, Set[Lookup]]
"""Lookups of kernels, by index."""

HIDDEN_WRITES = dict.fromkeys(
    ["native_batch_norm", "batch_norm", "cudnn_batch_norm", "_batch_norm_with_update"],
    ("running_mean", "running_var"),
)
"""Arguments that an operation writes to without a mark in its schema."""

SMALL_CONSTANT_BYTES = 1024
"""Constants of up to this size together are sizes, offsets or scales; more may be a result that
torch has computed on the host."""
OVERWRITING = {"copy", "fill", "zero"}
"""Operations whose in-place form does not read what it writes to; so does every `out`."""


# --- one node


@dataclass(frozen=True, slots=True)
class Effects:
    reads: frozenset[int]
    writes: frozenset[int]
    replaces: frozenset[int] = frozenset()
    """The storages among `writes` whose whole content is new."""


class Tables(Protocol):
    """Storages and tensors: a program's, or those of one that is being recorded."""

    @property
    def storages(self) -> Sequence[form.Storage]: ...
    @property
    def tensors(self) -> Sequence[form.Tensor]: ...


def effects(program: Tables, node: form.Node, accesses: Accesses) -> Effects:
    """Storages that a node reads and writes; a choice those of its alternatives together. An
    operation outside the table, which only references have, writes to its results alone."""
    match node:
        case form.Launch():
            return _launch_effects(program, node, accesses)
        case form.Op():
            return _op_effects(program, node)
        case form.Choice():
            nodes = (one for each in node.alternatives for one in each.nodes)
            found = [effects(program, one, accesses) for one in nodes]
            reads, writes = (one.reads for one in found), (one.writes for one in found)
            return Effects(frozenset[int]().union(*reads), frozenset[int]().union(*writes))
        case _:
            return Effects(storages(program, [node.tensor]), frozenset())


def storages(program: Tables, tensors: Iterable[int]) -> frozenset[int]:
    return frozenset(program.tensors[tensor].storage for tensor in tensors)


def _launch_effects(program: Tables, launch: form.Launch, accesses: Accesses) -> Effects:
    known = accesses.get(launch.kernel) or [Access.BOTH] * len(launch.arguments)
    passed = [
        (argument.tensor, access)
        for argument, access in zip(launch.arguments, known, strict=True)
        if isinstance(argument, form.TensorUse | form.Descriptor)
    ]
    return Effects(
        reads=storages(program, (tensor for tensor, access in passed if Access.READ in access)),
        writes=storages(program, (tensor for tensor, access in passed if Access.WRITE in access)),
    )


def _op_effects(program: Tables, op: form.Op) -> Effects:
    updated, overwritten = written_in_place(op)
    overwritten |= set(op.results) - updated
    name = packet(op.name)
    takes_shapes = name.endswith("_like") or name.startswith("new_")
    read = set[int]() if takes_shapes else set(tensors_of(op)) - overwritten
    return Effects(
        reads=storages(program, read),
        writes=storages(program, updated | overwritten),
        replaces=storages(program, (t for t in overwritten if covers_storage(program, t))),
    )


def written_in_place(op: form.Op) -> tuple[set[int], set[int]]:
    """The tensors among an operation's arguments that it updates, and those that it overwrites."""
    schema = schemas().get(op.name)
    bound = bind(schema, op) if schema else []
    if isinstance(bound, str):
        return set(), set()
    hidden = HIDDEN_WRITES.get(packet(op.name), ())
    updated: set[int] = set()
    overwritten: set[int] = set()
    for argument, value in bound:
        if argument.is_written or argument.name in hidden:
            reads_it = not argument.is_keyword and packet(op.name) not in OVERWRITING
            (updated if reads_it else overwritten).update(tensors_in(value))
    return updated, overwritten


def covers_storage(program: Tables, tensor: int) -> bool:
    """True if a tensor is its whole storage, each element once."""
    view = program.tensors[tensor]
    step = 1
    for stride, size in sorted(zip(view.strides, view.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return tensor_bytes(view) == program.storages[view.storage].num_bytes


# --- a list of nodes


@dataclass(frozen=True, slots=True)
class Content:
    """Things that the bytes of a storage may depend on."""

    inputs: frozenset[int] = frozenset()
    """Positions of inputs."""
    read: frozenset[int] = frozenset()
    """Inputs whose data had a part in it, beyond numbers that the host has read."""
    is_launched: bool = False
    """A launch of `forward` had a part in it."""
    is_prepared: bool = False
    """A launch or a computing operation of `init`, or large constants, had a part in it."""
    has_parameters: bool = False
    """A parameter had a part in it."""


_LAUNCHED, _PREPARED, _TABLE, _PARAMETERS, _INPUT = 1, 2, 4, 8, 16
_HOST = _INPUT << MAX_INPUTS
"""Bits of a content as an integer: its flags, from `_INPUT` on one for each input, and from `_HOST`
on one for each input that decided about it on the host; `_TABLE` is prepared, and no launch of
`forward` has computed with it and an input. A hostile program joins the contents of a million
arguments."""


def _decoded(bits: int) -> Content:
    read = [at for at in range(MAX_INPUTS) if bits & (_INPUT << at)]
    deciding = [at for at in range(MAX_INPUTS) if bits >= _HOST and bits & (_HOST << at)]
    return Content(
        inputs=frozenset((*read, *deciding)),
        read=frozenset(read),
        is_launched=bool(bits & _LAUNCHED),
        is_prepared=bool(bits & _PREPARED),
        has_parameters=bool(bits & _PARAMETERS),
    )


@dataclass(frozen=True, slots=True)
class Flow:
    contents: Mapping[int, Content]
    """Final content by storage."""
    prepared: frozenset[int]
    """Allocations that `init` has written to."""
    writers: Mapping[int, Placed]
    """First node of `forward` that certainly may write to a storage, by storage; launches count
    where their accesses are known."""
    reread: frozenset[int]
    """Storages that a later node reads, or an output shows, after one of `writers`."""
    live: frozenset[str]
    """Paths of the nodes that outputs, inputs or parameters depend on."""
    checks: frozenset[str] = frozenset()
    """Paths of those among them that truth values alone depend on which the host read: `assert
    (x >= 0).all()`."""
    looked_up: Sequence[LookedUp] = ()
    """Choices from tables by inputs, in launches of `forward`."""
    num_table_bytes: int = 0
    """Bytes of all tables of which inputs decide whether they are used."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A launch for which inputs choose from tables."""

    placed: Placed
    table: Content
    index: Content
    is_place: bool
    """True if they choose a place in the table, not whether it is used."""


def trace(
    program: form.Program,
    nodes: Sequence[Placed],
    accesses: Accesses | None = None,
    lookups: Lookups | None = None,
    seen: dict[tuple[int, ...], int] | None = None,
    *,
    is_question: bool = False,
) -> Flow:
    """The dataflow of a program along one of its variants.

    Args:
        nodes: from `walk.variants`.
        is_question: outputs are values that the host reads next.
        seen: for kernels with the contents of their arguments, of which `looked_up` is known, the
            arguments that inputs choose to use. Grows.
    """
    seen = dict[tuple[int, ...], int]() if seen is None else seen
    known = accesses or {}
    steps = [(placed, effects(program, placed.node, known)) for placed in nodes]
    contents = _first_contents(program)
    prepared: set[int] = set()
    writers: dict[int, Placed] = {}
    reread: set[int] = set()
    looked_up: list[LookedUp] = []
    tables: set[int | None] = set()
    outputs = storages(program, program.outputs)
    host = 0
    for placed, step in steps:
        source = host
        for storage in step.reads:
            source |= contents[storage]
        if isinstance(placed.node, form.Value):
            # Inputs that the host has read decide about what follows.
            deciding = (source & (_HOST - 1)) // _INPUT * _HOST
            host = source & ~_TABLE & ((_INPUT - 1) | -_HOST) | deciding
        reread |= step.reads & writers.keys()
        if isinstance(placed.node, form.Launch) and placed.section == form.Section.FORWARD:
            held = [
                program.tensors[one.tensor].storage
                if isinstance(one, form.TensorUse | form.Descriptor)
                else None
                for one in placed.node.arguments
            ]
            passed = tuple(-1 if at is None else contents[at] for at in held)
            shown = sum(1 << place for place, at in enumerate(held) if at in outputs)
            key = placed.node.kernel, shown, host, *passed
            if key not in seen:
                found = _looked_up(passed, (lookups or {}).get(placed.node.kernel, ()), shown, host)
                seen[key] = union_of(chosen for chosen, _, is_place in found if not is_place)
                pairs = {
                    (union_of(passed[at] for at in places_in(chosen)), index, is_place)
                    for chosen, index, is_place in found
                }
                looked_up += (
                    LookedUp(placed, _decoded(table), _decoded(index), is_place)
                    for table, index, is_place in pairs
                )
            tables.update(held[place] for place in places_in(seen[key]))
        made = _through(program, placed, source)
        for storage in step.writes:
            before = 0 if storage in step.replaces else contents[storage]
            # A candidate's own parameter is the problem's: `copy_` of it to itself reads nothing.
            is_parameter = program.storages[storage].origin == form.Origin.PARAMETER
            contents[storage] = made | before | (_PARAMETERS if is_parameter else 0)
            if placed.section == form.Section.INIT:
                prepared.add(storage)
            elif not isinstance(placed.node, form.Launch) or placed.node.kernel in known:
                writers.setdefault(storage, placed)
    reread |= storages(program, program.outputs) & writers.keys()
    live = _live(program, steps)
    computed = _live(program, steps, has_checks=False, is_question=is_question)
    decoded = {bits: _decoded(bits) for bits in set(contents.values())}
    return Flow(
        contents={storage: decoded[bits] for storage, bits in contents.items()},
        prepared=frozenset(prepared),
        writers=writers,
        reread=frozenset(reread),
        live=live,
        checks=live - computed,
        looked_up=looked_up,
        num_table_bytes=sum(program.storages[at].num_bytes for at in tables if at is not None),
    )


def _looked_up(
    passed: Sequence[int], lookups: Iterable[Lookup], shown: int, host: int
) -> set[tuple[int, int, bool]]:
    """The tables from which inputs choose in a launch, as bits, and the contents of their indices.

    Args:
        passed: contents of the arguments; -1 for numbers.
        shown: bits of the arguments that are outputs: what the host has read decides about them.
    """
    table, given, data = 0, 0, 0
    for place, content in enumerate(passed):
        if content >= 0:
            table |= (1 << place) if content & _TABLE else 0
            given |= (1 << place) if content >= _INPUT else 0
            is_data = (content & (_HOST - 1)) >= _INPUT and not content & _TABLE
            data |= (1 << place) if is_data else 0
    found: set[tuple[int, int, bool]] = set()
    contents: dict[int, int] = {}
    for one in lookups if table else ():
        chosen, index = one.tables & table, one.by & given
        if not chosen or (one.tables & data and not one.is_place):
            continue
        if index not in contents:
            contents[index] = union_of(passed[at] for at in places_in(index))
        decides = contents[index] | (host if one.targets & shown else 0)
        if decides >= _INPUT:
            found.add((chosen, decides, one.is_place))
    return found


def places_in(bits: int) -> Iterator[int]:
    """Positions of the bits that are set."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


def union_of(masks: Iterable[int]) -> int:
    """The bits that any of them has."""
    found = 0
    for one in masks:
        found |= one
    return found


def _first_contents(program: form.Program) -> dict[int, int]:
    contents = dict.fromkeys(range(len(program.storages)), 0)
    num_bytes = sum(one.num_bytes for one in program.storages if one.origin == form.Origin.CONSTANT)
    for at, held in enumerate(program.storages):
        if held.origin == form.Origin.INPUT:
            contents[at] = _INPUT << held.index
        elif held.origin == form.Origin.CONSTANT and num_bytes > SMALL_CONSTANT_BYTES:
            contents[at] = _PREPARED | _TABLE
        elif held.origin == form.Origin.PARAMETER:
            contents[at] = _PARAMETERS
    return contents


def _through(program: form.Program, placed: Placed, source: int) -> int:
    node, in_init = placed.node, placed.section == form.Section.INIT
    is_launch = isinstance(node, form.Launch)
    is_move = isinstance(node, form.Op) and kind_of(program, node) in MOVES | {Kind.RANDOM}
    found = source
    if is_launch and (source & (_HOST - 1)) >= _INPUT:
        found &= ~_TABLE
    if is_launch and not in_init:
        found |= _LAUNCHED
    if in_init and (is_launch or isinstance(node, form.Op)) and not is_move:
        found |= _PREPARED | _TABLE
    return found


def _live(
    program: form.Program,
    steps: Sequence[tuple[Placed, Effects]],
    *,
    has_checks: bool = True,
    is_question: bool = False,
) -> frozenset[str]:
    """Paths of nodes that matter: a later content that somebody sees depends on them.

    Seen are outputs, inputs and parameters at the end, and values that the host read; without
    `has_checks`, no truth values.
    """

    def is_seen(tensor: int) -> bool:
        return has_checks or program.tensors[tensor].dtype != "bool"

    outputs = [one for one in program.outputs if not is_question or is_seen(one)]
    wanted = set(storages(program, outputs)) | {
        at
        for at, held in enumerate(program.storages)
        if held.origin in (form.Origin.INPUT, form.Origin.PARAMETER)
    }
    live: set[str] = set()
    for placed, step in reversed(steps):
        node = placed.node
        is_value = isinstance(node, form.Value) and is_seen(node.tensor)
        if not is_value and not step.writes & wanted:
            continue
        live.add(placed.path)
        wanted -= step.replaces
        wanted |= step.reads
    return frozenset(live)


# --- a first call on a card, where an autotuner's benchmarks run before the winner
#
# `triton.autotune` runs each configuration on the call's own tensors and puts back those alone that
# `reset_to_zero`, `restore_value` or a hook names. A kernel that reads what it writes
# (`tl.atomic_add`, in place) finds what its benchmarks left in the others.


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
    if sum(1 for _ in places(program)) > MAX_NODES // 4:
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
