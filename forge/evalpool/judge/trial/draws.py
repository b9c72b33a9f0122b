"""A draw of a problem: what a candidate gets and what it must give, by numbers of tensors.

It is built from an oracle's layout, which is not trusted: each part of it is checked. Contents are
in the host's memory (`HostDraw`), in two layouts with the same numbers: in their real types, and
wide, where those of `kinds` are float64; or on a card (`trial.gpu.references`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from forge.evalpool.judge.channel import shm
from forge.evalpool.judge.channel.frames import count
from forge.evalpool.judge.channel.nesting import mapped, parse_form
from forge.evalpool.judge.channel.words import clean
from forge.evalpool.judge.wide import compare
from forge.evalpool.judge.wide.compare import (
    DOUBLE_FUNCTION,
    SAME_FUNCTION,
    Bytes,
    Elements,
    Mask,
    Question,
    Wanted,
    real_question,
)
from forge.evalpool.judge.wide.patterns import Operands, Plant, Values, are_far
from forge.records.problem import ReferenceModule

MAX_USES = 32
"""Candidates judged on one draw of inputs and parameters: a group of 8 with 3 turns on 2 judges
needs it once."""
NUM_TIMED_SETS = 2
"""Sets that no candidate has seen before it is timed."""
WIDE = "float64"
MAX_WORDS = 300
"""Length of what differs between two sets, in words."""
MAX_TENSORS = 20_000
MAX_PLANTS = 64
MAX_NAME = 64
"""Length of a word from an oracle."""
ROUGH = 0.1
"""Least tolerance beside loud plants, of which what overflows or is bounded is off by all."""

Tree = list[Any]


class Asked(NamedTuple):
    """How a result is compared."""

    question: Question
    exact: int | None = None
    """Number of the same result by float64: eager's own roundings are no demand, and what is as
    near to this one, or the same integer, is right, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSet:
    """Arguments of one call and what must come of it. Sets of the same form share their places."""

    tree: Tree
    """Its tensors are places."""
    places: tuple[int, ...]
    """Places of its input tensors."""
    slots: tuple[int, ...]
    """Places for its outputs."""
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    changed: dict[int, int]
    """Inputs that the reference changes, by position, as it leaves them."""
    state: dict[str, int]
    """Parameters that the reference changes, by name, as it leaves them."""
    parameters: dict[int, int] = field(default_factory=dict[int, int])
    """Parameters that are others in this set, by those that they stand for."""
    wide: tuple[int, ...] = ()
    """Outputs, then changed inputs, in float64; empty where there are none."""
    plants: tuple[Plant, ...] = ()
    """Some of the elements that it replaces, for messages."""
    is_planted: bool = False
    """True if elements of its inputs are replaced."""
    asks_real: bool = True
    """True if the question in the problem's own types is asked on it."""
    is_rough: bool = False
    """True if it is asked on loud plants, for results that overflow."""
    is_partial: bool = False
    """True if what is not finite says nothing."""

    @property
    def is_quiet(self) -> bool:
        """True if it is compared in the problem's types, without loud plants or own parameters."""
        is_quiet = (self.asks_real and not are_far(self.plants)) or not self.wide
        return is_quiet and not self.parameters

    @property
    def results(self) -> tuple[int, ...]:
        return (*self.outputs, *self.changed.values())


@dataclass(slots=True, kw_only=True)
class Draw:
    """`request` and what lies at `contents` go to a candidate; the rest never does."""

    request: dict[str, Any]
    """Body of the CANDIDATE frame, but for the code."""
    precision: str
    specs: Sequence[shm.TensorSpec]
    """Types and shapes of the oracle's tensors."""
    contents: Sequence[int | None]
    """By place, the tensor that lies there before the first call; None of an output's slot."""
    sets: Sequence[InputSet]
    named: dict[str, int]
    """Tensors of parameters by name, `init.<k>` for those among the constructor's arguments."""
    asked: dict[int, Asked]
    """How each result is compared, by its number."""
    is_sequence: bool
    """True if forward returns a list or tuple."""
    nesting: str = ""
    """As of `Program`."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    needs_statistics: bool = False
    """True if outputs need a norm's statistics that a call changes."""
    flops: int = 0
    """FLOPs of its matrix products, convolutions and attention."""
    has_products: bool = True
    """True if a call has products that TF32 may make inexact, or its operations are unknown."""
    kinds: frozenset[str] = frozenset()
    """Types that are float64 in the wide results."""
    why_narrow: str = ""
    """Why there are none."""
    insensitive: tuple[str, ...] = ()
    """Inputs and parameters on which no output was seen to depend."""
    is_constant: bool = False
    """True if no output depends on any input."""
    is_aimed: bool = False
    """True if parameters are as they are constructed, or 0, in all sets."""
    reads_training: bool = True
    """True if the reference may do something else after `eval()`."""
    num_uses: int = 0
    num_holders: int = 0
    """Judgements that read it now: its memory is freed when none does."""
    is_retired: bool = False

    @property
    def is_used_up(self) -> bool:
        """True if it has served its candidates: as many as its outputs have numbers, up to
        MAX_USES. A kernel that knows the answers to all input sets need not compute, and feedback
        tells up to three numbers: one that is expected, one that the kernel had, the largest
        error."""
        num_expected = sum(math.prod(self.specs[one].shape) for one in self.sets[0].outputs)
        return self.num_uses >= max(1, min(num_expected, MAX_USES))

    @property
    def changed_parameters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self.sets for name in one.state))

    @property
    def io_bytes(self) -> int:
        return self._bytes([*self.sets[0].inputs, *self.sets[0].outputs])

    @property
    def num_bytes(self) -> int:
        return self.io_bytes + self._bytes(self.named.values())

    def parameter(self, name: str, number: int) -> int:
        own = self.named[name]
        return self.sets[number].parameters.get(own, own)

    def differences(self, number: int) -> str:
        """The arguments and parameters of an input set that are not those of the first, in words;
        but for tensors' values."""
        first, own = (dict(_arguments(self.request["sets"][one])) for one in (0, number))
        found = [f"{name}={text}" for name, text in own.items() if first.get(name) != text]
        words = f"where forward gets {', '.join(found)}" if found else ""
        others = self.sets[number].parameters
        if names := [one for one, index in self.named.items() if self.is_aimed or index in others]:
            words += f"\nwhere parameters are as Model makes them, or 0: {', '.join(names)}"
        return words.strip()[:MAX_WORDS]

    def forms(self, number: int) -> list[tuple[str, tuple[int, ...]]]:
        specs = [self.specs[index] for index in self.sets[number].outputs]
        return [(spec.dtype, spec.shape) for spec in specs]

    def is_sketched_by(self, sketch: Draw) -> bool:
        """True if a sketch, of its first set alone, asks for the same program."""
        own, other = ({**one.request, "sets": one.request["sets"][:1]} for one in (self, sketch))
        own["tensors"] = own["tensors"][: len(other["tensors"])]  # those of further sets follow
        answers = [(one.is_sequence, one.nesting, one.forms(0)) for one in (self, sketch)]
        return own == other and answers[0] == answers[1]

    def has_elements(self, number: int) -> bool:
        return any(math.prod(self.specs[index].shape) for index in self.sets[number].results)

    def is_like_first(self, number: int) -> bool:
        """True if the program of set 0 serves a set, unless its host reads values."""
        trees = self.request["sets"]
        return bool(trees[number] == trees[0])

    @property
    def timed(self) -> list[int]:
        """Sets of timed calls, which one program serves."""
        able = [number for number, one in enumerate(self.sets) if one.is_quiet]
        return [number for number in able if self.is_like_first(number)]

    @property
    def unseen(self) -> list[int]:
        """Sets that no candidate has had in its checked calls: they are first seen when timed, in
        the problem's types. Without planted ones, given ones; one set of each kind stays."""
        able = [number for number in self.timed if number]
        planted = [number for number in able if self.sets[number].is_planted]
        able = planted[1:] or ([] if planted else able)
        return able[max(0, len(able) - NUM_TIMED_SETS) :]

    def _bytes(self, indices: Collection[int]) -> int:
        return sum(self.specs[index].num_bytes for index in indices)


def _arguments(tree: Tree, name: str = "") -> Iterator[tuple[str, str]]:
    kind, value = tree
    if kind in ("list", "tuple", "dict", "keywords"):
        is_named = kind in ("dict", "keywords")
        for key, part in value if is_named else enumerate(value):
            within = f"{name}[{key!r}]" if name else f"argument {key}"
            yield from _arguments(part, str(key) if kind == "keywords" else within)
    else:
        yield name, repr(value) if kind == "value" else "a tensor"


def widened(spec: shm.TensorSpec, kinds: Collection[str]) -> shm.TensorSpec:
    """A tensor as a program in float64 has it."""
    return replace(spec, dtype=WIDE) if spec.dtype in kinds else spec


class Builder:
    """Numbers an oracle's tensors for a candidate: inputs, parameters, slots."""

    def __init__(self, specs: Sequence[shm.TensorSpec], *, precision: str) -> None:
        """`specs` of the oracle's tensors; the problem's precision."""
        self._specs = specs
        self._precision = self._rounding = precision
        self._kinds = frozenset[str]()
        self._named: dict[str, int] = {}
        self._contents: list[int | None] = []
        self._chosen: list[shm.TensorSpec] = []
        self._places: dict[str, tuple[int, ...]] = {}
        self._asked: dict[int, Asked] = {}

    def build(self, layout: dict[str, Any]) -> Draw:
        try:
            return self._build(layout)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise shm.LayoutError(f"{type(error).__name__}: {error}") from error

    def _build(self, layout: dict[str, Any]) -> Draw:
        if not layout["sets"]:
            raise shm.LayoutError("no input set")
        init_parts: list[int] = []
        init = self._tree(layout["init"], init_parts)
        init = mapped(init, self._take("init", init_parts).__getitem__)
        self._kinds = frozenset(layout.get("kinds", ()))
        if not self._kinds <= {*shm.FLOATING}:
            raise shm.LayoutError(f"no types {str(layout['kinds'])[:40]}")
        self._rounding = parse_rounding(layout.get("rounding"), self._precision)
        state = self._state(layout["state"])
        self._named = {**state, **{f"init.{k}": index for k, index in enumerate(init_parts)}}
        places = self._take("state", list(state.values()))
        sets, drawn = [self._set(one) for one in layout["sets"]], layout.get("drawn")
        request = {
            "init": init,
            "state": [list(pair) for pair in zip(state, places, strict=True)],
            "order": [str(name) for name in layout["order"]],
            "held": [str(name) for name in layout["held"]],
            "drawn": None if drawn is None else {str(n): str(one)[:64] for n, one in drawn.items()},
            "sets": [one.tree for one in sets],
            "tensors": [[spec.dtype, list(spec.shape)] for spec in self._chosen],
        }
        is_sequence, nesting = parse_form(layout["form"])
        return Draw(
            request=request,
            precision=self._precision,
            specs=self._specs,
            contents=self._contents,
            sets=sets,
            named=self._named,
            asked=self._asked,
            is_sequence=is_sequence,
            nesting=nesting,
            names=frozenset(str(name) for name in layout["names"]),
            needs_statistics=layout.get("statistics") is True,
            flops=count(layout["flops"]),
            has_products=layout.get("products") is not False,
            kinds=self._kinds,
            why_narrow=parse_words(layout.get("narrow") or ""),
            insensitive=tuple(parse_words(one) for one in layout.get("insensitive", ())),
            is_constant=layout.get("constant") is True,
            reads_training=layout.get("training") is not False,
        )

    def _set(self, one: dict[str, Any]) -> InputSet:
        parts: list[int] = []
        form = self._tree(one["inputs"], parts)
        specs = [self._specs[part] for part in parts]
        places = self._take(f"inputs {form} {specs}", parts)
        outputs = self._indices(one["outputs"])
        changed = {_within(n, len(parts)): index for n, index, *_ in one["changed"]}
        made = InputSet(
            tree=mapped(form, places.__getitem__),
            places=places,
            slots=self._take(f"slots {[self._specs[n] for n in outputs]}", outputs, is_slot=True),
            inputs=tuple(parts),
            outputs=outputs,
            changed=dict(zip(changed, self._indices(changed.values()), strict=True)),
            state=self._state(one["state"]),
            parameters={
                self._named[name]: index
                for name, index in self._state(one.get("parameters", ())).items()
            },
            wide=self._indices(one.get("wide", ())),
            plants=parse_plants(one.get("plants", ()), [math.prod(one.shape) for one in specs]),
            is_planted=bool(one.get("plants")),
            asks_real=one.get("asks_real", True) is True,
            is_rough=one.get("rough") is True,
            is_partial=one.get("is_partial") is True,
        )
        self._ask(made, one)
        return made

    def _ask(self, made: InputSet, one: dict[str, Any]) -> None:
        same = DOUBLE_FUNCTION if self._kinds == {WIDE} else SAME_FUNCTION
        same = replace(same, is_partial=made.is_partial)
        self._asked |= {index: Asked(same) for index in made.wide}
        exact = made.wide or self._indices(one.get("exact", ())) or (None,) * len(made.results)
        for index, other in zip(made.results, exact, strict=True):
            form = widened(self._specs[index], self._kinds)
            if other is not None and self._specs[other] != form:
                raise shm.LayoutError(f"{self._specs[other]} in place of {form}")
            self._asked[index] = Asked(self._question(index, made, one), other)
        for own, index in made.parameters.items():
            if self._specs[index] != self._specs[own]:
                raise shm.LayoutError("a parameter has another shape in a set")
        for name, index in made.state.items():
            own = self._named[name]
            if self._specs[index] != self._specs[own]:
                raise shm.LayoutError(f"parameter {name[:40]} has another shape after a call")
            for each in (index, own, made.parameters.get(own, own)):
                asked = [Asked(self._question(each, made, one)), self._asked.get(each)]
                self._asked[each] = min(filter(None, asked), key=lambda it: it.question.tolerance)

    def _question(self, index: int, made: InputSet, one: dict[str, Any]) -> Question:
        dtype = self._specs[index].dtype
        if dtype not in shm.FLOATING and made.wide and one.get("is_open") is False:
            return SAME_FUNCTION  # no integer of it is left to a rounding
        question = real_question(dtype, self._rounding)
        tolerance = question.tolerance * max(1.0, float(one.get("slack", 1.0)))
        least = ROUGH if made.is_rough and made.wide else 0.0
        return replace(
            question,
            tolerance=max(tolerance, least),
            is_alone=not self._kinds,
            is_partial=made.is_partial,
        )

    def _state(self, pairs: Any) -> dict[str, int]:
        found = {str(name): index for name, index in pairs}
        self._indices(found.values())
        if self._named and not found.keys() <= self._named.keys():
            raise shm.LayoutError(f"no parameters {sorted(found)[:4]}")
        return found

    def _indices(self, data: Iterable[Any]) -> tuple[int, ...]:
        return tuple(_within(index, len(self._specs)) for index in data)

    def _tree(self, tree: Any, parts: list[int]) -> Tree:
        """The same tree with tensors numbered as they come; the oracle's indices go to `parts`.
        Refuses one that is not well-formed."""
        kind, value = tree
        if kind == "tensor":
            parts.append(_within(value, len(self._specs)))
            return ["tensor", len(parts) - 1]
        if kind == "permuted":
            tensor, axes = self._tree(value[0], parts), value[1]
            num_axes = len(self._specs[parts[-1]].shape)
            if not isinstance(axes, list) or sorted(axes) != list(range(num_axes)):
                raise shm.LayoutError(f"no axes {str(axes)[:40]}")
            return [kind, [tensor, axes]]
        if kind in ("list", "tuple"):
            return [kind, [self._tree(item, parts) for item in value]]
        if kind in ("dict", "keywords"):
            return [kind, [[str(key), self._tree(item, parts)] for key, item in value]]
        if kind in ("value", "dtype", "config"):
            return [kind, value]
        raise shm.LayoutError(f"unknown kind of argument {str(kind)[:40]}")

    def _take(self, key: str, parts: Sequence[int], *, is_slot: bool = False) -> tuple[int, ...]:
        """Places for these, the same ones for the same key; slots have no content."""
        if key not in self._places:
            first = len(self._contents)
            self._chosen += [self._specs[part] for part in parts]
            self._contents += [None if is_slot else part for part in parts]
            self._places[key] = tuple(range(first, len(self._contents)))
        return self._places[key]


def _within(value: Any, num: int) -> int:
    if type(value) is not int or not 0 <= value < num:
        raise shm.LayoutError(f"no tensor {str(value)[:40]}")
    return value


@lru_cache(maxsize=256, typed=True)
def parse_words(data: Any) -> str:
    return clean(str(data), limit=MAX_NAME)


def parse_rounding(data: Any, precision: str) -> str:
    """The coarsest precision that an oracle says its reference rounds to, if it is one."""
    return data if data in ("fp16", "bf16") and precision == "fp32" else precision


def parse_plants(data: Sequence[Any], sizes: Sequence[int]) -> tuple[Plant, ...]:
    """Reads the places that a set says it planted, within these sizes. Raises LayoutError."""
    found: list[Plant] = []
    for position, index, kind in data[:MAX_PLANTS]:
        size = sizes[_within(position, len(sizes))]
        found.append(Plant(position, _within(index, size), parse_words(kind)))
    return tuple(found)


def parse_specs(data: Any) -> list[shm.TensorSpec]:
    """Types and shapes from an oracle's layout. Raises LayoutError."""
    if not isinstance(data, list) or len(data) > MAX_TENSORS:
        raise shm.LayoutError("no list of tensors")
    return [shm.TensorSpec.parse(item) for item in data]


def parse_starts(data: Any, specs: list[shm.TensorSpec], *, max_bytes: int) -> list[int]:
    """The first byte of each tensor from an oracle's layout. Raises LayoutError."""
    if not isinstance(data, list) or len(data) != len(specs):
        raise shm.LayoutError("no list of places")
    for start, spec in zip(data, specs, strict=True):
        if type(start) is not int or start % shm.ALIGNMENT_BYTES:
            raise shm.LayoutError(f"no place {str(start)[:40]}")
        if not 0 <= start <= max_bytes - spec.num_bytes:
            raise shm.LayoutError(f"{spec.num_bytes} bytes at {start} are not within {max_bytes}")
    return data


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of a draw's tensors in a memory, by their numbers."""

    specs: Sequence[shm.TensorSpec]
    starts: Sequence[int]
    num_bytes: int

    @classmethod
    def of(cls, specs: Sequence[shm.TensorSpec]) -> Layout:
        starts, num_bytes = shm.offsets(specs)
        return cls(specs, starts, num_bytes)

    def rows(self) -> list[list[Any]]:
        pairs = zip(self.specs, self.starts, strict=True)
        return [[spec.dtype, list(spec.shape), start] for spec, start in pairs]

    def part(self, memory: memoryview[int], place: int) -> memoryview[int]:
        start = self.starts[place]
        return memory[start : start + self.specs[place].num_bytes]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Tensors that an oracle has laid out in host memory."""

    layout: dict[str, Any]
    specs: Sequence[shm.TensorSpec]
    starts: Sequence[int]
    data: shm.Data

    @classmethod
    def taken(cls, layout: dict[str, Any], fd: int, *, max_bytes: int) -> Delivered:
        specs = parse_specs(layout.get("tensors"))
        starts = parse_starts(layout.get("starts"), specs, max_bytes=max_bytes)
        ends = [start + spec.num_bytes for start, spec in zip(starts, specs, strict=True)]
        return cls(layout, specs, starts, shm.taken(fd, max(ends, default=0)))

    @property
    def parts(self) -> list[shm.Data]:
        pairs = zip(self.starts, self.specs, strict=True)
        return [self.data[start : start + spec.num_bytes] for start, spec in pairs]

    def draw(self, problem: ReferenceModule) -> Draw:
        return Builder(self.specs, precision=problem.precision).build(self.layout)


@dataclass(slots=True, eq=False)
class Content(ABC):
    """The tensors of a draw, by their numbers, and the comparison with them."""

    draw: Draw
    wanted: dict[int, Wanted] = field(init=False)
    """Results, by number."""

    @property
    @abstractmethod
    def num_bytes(self) -> int: ...

    @abstractmethod
    def free(self) -> None: ...

    @abstractmethod
    def tensor(self, index: int, got: Any = None) -> Elements:
        """A tensor of the draw, or what a call left in place of it."""

    @abstractmethod
    def is_same(self, got: Any, index: int) -> bool: ...

    def want(self) -> None:
        asked = self.draw.asked.items()
        self.wanted = {index: self._wanted(index, *one) for index, one in asked}

    def result(self, index: int, question: Question | None) -> Wanted:
        """A result under a question, that of the draw by default."""
        if question is None:
            return self.wanted[index]
        return self._wanted(index, question, self.draw.asked[index].exact)

    def _wanted(self, index: int, question: Question, exact: int | None = None) -> Wanted:
        other = None if exact is None else self._wanted(exact, question)
        return Wanted(values=self.tensor(index), question=question, exact=other)

    def mismatch(
        self, got: Any, index: int, question: Question | None, *, name: str, operands: Operands
    ) -> tuple[str, Mask | None] | None:
        """None where a tensor is right under a question, that of the draw by default; else what
        differs in words, and where it does."""
        found, shape = self.tensor(index, got), self.draw.specs[index].shape
        if found.shape != shape:
            return f"{name} shape is {list(found.shape)}, expected {list(shape)}", None
        wanted = self.result(index, question)
        return compare.mismatch(wanted, found, name=name, operands=operands)

    def is_unwritten(self, got: Any, index: int) -> bool:
        """True if an output is as an unwritten one, and the reference has more."""
        return compare.is_unwritten(self.tensor(index, got), self.tensor(index))

    def values(self, index: int, *, name: str, got: Any = None) -> Values:
        return compare.values_of(self.tensor(index, got), name=name)


@dataclass(slots=True, eq=False)
class HostDraw(Content):
    """A draw, and the bytes of its tensors."""

    parts: Sequence[shm.Data]
    real: Layout = field(init=False)
    """Places in their types as the problem has them."""
    wide: Layout | None = field(init=False, default=None)
    """None where the reference has no float64 results."""

    def __post_init__(self) -> None:
        rows = self.draw.request["tensors"]
        specs = [shm.TensorSpec(dtype, tuple(shape)) for dtype, shape in rows]
        self.real = Layout.of(specs)
        if any(one.wide for one in self.draw.sets):
            self.wide = Layout.of([widened(one, self.draw.kinds) for one in specs])
        self.want()

    def tensor(self, index: int, got: shm.Data | None = None) -> Bytes:
        return Bytes(self.draw.specs[index], self.parts[index] if got is None else got)

    @property
    def num_bytes(self) -> int:
        return 4 * self.memory_bytes

    def free(self) -> None:
        self.parts = ()
        self.wanted.clear()

    @property
    def memory_bytes(self) -> int:
        return max(one.num_bytes for one in (self.real, self.wide) if one is not None)

    @property
    def request(self) -> dict[str, Any]:
        """The draw as an evaluator knows it: both layouts."""
        wide = {} if self.wide is None else {"wide_tensors": self.wide.rows()}
        return {
            **self.draw.request,
            **wide,
            "tensors": self.real.rows(),
            "slots": list(self.draw.sets[0].slots),
            "num_bytes": self.memory_bytes,
            "kinds": sorted(self.draw.kinds),
        }

    def is_unwritten(self, got: shm.Data, index: int) -> bool:
        spec = self.draw.specs[index]
        if spec.dtype not in shm.FLOATING:
            return spec.num_bytes > 0 and shm.is_same(got, shm.unwritten(spec))
        return compare.is_unwritten(self.tensor(index, got), self.tensor(index))

    def is_same(self, got: shm.Data, index: int) -> bool:
        return shm.is_same(got, self.parts[index])
