"""One draw of a problem on a GPU: what an oracle laid out, checked, as tensors by input set.

Called by `trial.gpu.references`, which asks the oracle, and read by all that judge on a card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel.nesting import parse_form
from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.trial.draws.build import (
    parse_axes,
    parse_drawn,
    parse_kinds,
    parse_plants,
    parse_rounding,
    parse_words,
)
from forge.evalpool.judge.trial.draws.reference import WIDE, max_uses, widened
from forge.evalpool.judge.trial.trial import count
from forge.evalpool.judge.wide.card import CardWanted
from forge.evalpool.judge.wide.compare import DOUBLE_FUNCTION, SAME_FUNCTION, real_question
from forge.evalpool.judge.wide.look import are_far

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from forge.evalpool.judge.channel.gpu_memory import Block
    from forge.evalpool.judge.wide.compare import Question
    from forge.evalpool.judge.wide.look import Plant

NUM_TIMED_SETS = 2
"""Sets that no candidate has seen before it is timed."""

Tree = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input of a problem that works in place."""

    number: int
    """Among the inputs."""
    output: int
    """Index of its content afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Indices of one input set's tensors."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    changed: tuple[Changed, ...] = ()
    """Inputs that forward must change in place."""
    state: tuple[tuple[str, int], ...] = ()
    """Parameters that forward changes, by name, and the indices of their contents afterwards."""
    wide: tuple[int, ...] = ()
    """Outputs, then changed inputs, in float64; empty where there are none."""
    exact: tuple[int, ...] = ()
    """The same where a rounding decides, integers as float64 gives them: none is asked in it."""
    plants: tuple[Plant, ...] = ()
    """Some of the elements that it replaces, for messages."""
    is_planted: bool = False
    """True if elements of its inputs are replaced."""
    asks_real: bool = True
    """True if the question in the problem's own types is asked on it."""
    is_sure: bool = False
    """True if no integer of it is left to a rounding."""
    slack: float = 1.0
    """Factor of the tolerance in the problem's types."""

    @property
    def is_asked_real(self) -> bool:
        """True if what it gives in the problem's types is compared, too."""
        return (self.asks_real and not are_far(self.plants)) or not self.wide


@dataclass(slots=True, kw_only=True)
class GpuReference:
    """One draw of a problem, in the judge's memory."""

    request: dict[str, Any]
    """Body of a capture's request, but for the code. All sets have tensors of the same shapes, so
    one of it stands for one of each set; but outputs may have other shapes, as of `nonzero`, and
    arguments that are no tensors other values."""
    flops: int
    """FLOPs of its matrix products, convolutions and attention."""
    precision: str
    block: Block
    tensors: list[torch.Tensor]
    sets: list[Set]
    named: dict[str, int]
    """Indices of parameters by name, `init.<k>` for tensors among the constructor's arguments."""
    is_sequence: bool
    """True if forward returns a list or tuple."""
    wanted: dict[int, CardWanted]
    """Expected outputs under their question, by index."""
    kinds: frozenset[str] = frozenset()
    """Types that are float64 in the wide results."""
    why_narrow: str = ""
    """Why there are none."""
    insensitive: tuple[str, ...] = ()
    """Inputs and parameters on which no output was seen to depend."""
    is_constant: bool = False
    """True if no output depends on any input."""
    nesting: str = ""
    """As of `Program`."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    is_on_host: bool = False
    """True if expected outputs are in the host's memory, where a small draw is compared: a kernel
    of the judge's own on the card takes longer to launch."""
    num_uses: int = 0
    num_holders: int = 0
    """Judgements that read it now: it is freed when none does."""
    is_retired: bool = False

    def put_inputs(self, put: Callable[[int], torch.Tensor]) -> None:
        """Takes inputs and parameters from the card; expected outputs stay where they are.

        Args:
            put: the tensor of an index there.
        """
        self.is_on_host = True
        inputs = (index for one in self.sets for index in one.inputs)
        for index in {*inputs, *self.named.values()}:
            self.tensors[index] = put(index)

    @property
    def max_uses(self) -> int:
        """Candidates that one draw may serve."""
        return max_uses(sum(self.tensors[index].numel() for index in self.sets[0].outputs))

    @property
    def unseen(self) -> list[int]:
        """Sets that no candidate has had in its checked calls: they are first seen when timed, in
        the problem's types. Without planted ones, given ones; one set of each kind stays."""
        able = [number for number in self.timed if number]
        planted = [number for number in able if self.sets[number].is_planted]
        able = planted[1:] or ([] if planted else able)
        return able[max(0, len(able) - NUM_TIMED_SETS) :]

    @property
    def timed(self) -> list[int]:
        """Sets of timed calls, which one program serves."""
        trees = self.request["sets"]
        able = [number for number, one in enumerate(self.sets) if one.is_asked_real]
        return [number for number in able if trees[number] == trees[0]]

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs of a set."""
        return sum(self.tensors[index].nbytes for index in self.sets[0].inputs)

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs of a set."""
        return sum(self.tensors[index].nbytes for index in self.sets[0].outputs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs, parameters and outputs of one call."""
        parameters = sum(self.tensors[index].nbytes for index in self.named.values())
        return self.input_bytes + parameters + self.output_bytes

    @property
    def changed_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that forward changes on any set."""
        return tuple(dict.fromkeys(name for one in self.sets for name, _ in one.state))

    @property
    def has_elements(self) -> bool:
        """True if a call has something to compute."""
        one = self.sets[0]
        written = (*one.outputs, *(change.output for change in one.changed))
        return any(self.tensors[index].numel() for index in written)


def arrange(
    layout: dict[str, Any], tensors: list[torch.Tensor], *, block: Block, precision: str
) -> GpuReference:
    """Checks an oracle's layout. Raises LayoutError, or what a malformed one leads to."""
    sets, trees = [], []
    known = {str(name): index for name, index in layout["state"]}
    _indices(known.values(), tensors)
    for one in layout["sets"]:
        found: list[int] = []
        trees.append(_tree(one["inputs"], found, tensors=tensors))
        outputs = _indices(one["outputs"], tensors)
        changed = tuple(_changed(item, found, tensors) for item in one["changed"])
        sets.append(
            Set(
                inputs=tuple(found),
                outputs=outputs,
                changed=changed,
                state=_state(one["state"], known, tensors),
                wide=_indices(one.get("wide", ()), tensors),
                exact=_indices(one.get("exact", ()), tensors),
                plants=parse_plants(one.get("plants", ()), [tensors[i].numel() for i in found]),
                is_planted=bool(one.get("plants")),
                asks_real=one.get("asks_real", True) is True,
                is_sure=bool(one.get("wide")) and one.get("is_open") is False,
                slack=max(1.0, float(one.get("slack", 1.0))),
            )
        )
    if not sets:
        raise LayoutError("no input set")
    shapes = [[spec_of(tensors[index]) for index in one.inputs] for one in sets]
    if any(one != shapes[0] for one in shapes):
        raise LayoutError("get_inputs gives other shapes from call to call")
    types = [[tensors[index].dtype for index in one.outputs] for one in sets]
    if any(one != types[0] for one in types):
        raise LayoutError("outputs differ in their number or types from call to call")
    named, state = dict(known), list(known)
    init: list[int] = []
    init_tree = _tree(layout["init"], init, tensors=tensors, start=len(sets[0].inputs))
    named |= {f"init.{number}": index for number, index in enumerate(init)}
    first = len(sets[0].inputs) + len(init)
    placed = [*sets[0].inputs, *init, *(named[name] for name in state), *sets[0].outputs]
    specs = [spec_of(tensors[index]) for index in placed]
    request = {
        "init": init_tree,
        "state": [[name, first + number] for number, name in enumerate(state)],
        "order": [str(name) for name in layout["order"]],
        "held": [str(name) for name in layout["held"]],
        "drawn": parse_drawn(layout.get("drawn")),
        "sets": trees,
        "tensors": [[spec.dtype, list(spec.shape)] for spec in specs],
    }
    kinds = parse_kinds(layout.get("kinds", ()))
    is_sequence, nesting = parse_form(layout["form"])
    return GpuReference(
        request=request,
        flops=count(layout["flops"]),
        precision=precision,
        block=block,
        tensors=tensors,
        sets=sets,
        named=named,
        is_sequence=is_sequence,
        nesting=nesting,
        names=frozenset(str(name) for name in layout["names"]),
        wanted=_wanted(
            sets,
            tensors,
            named,
            rounding=parse_rounding(layout.get("rounding"), precision),
            kinds=kinds,
        ),
        kinds=kinds,
        why_narrow=parse_words(layout.get("narrow") or ""),
        insensitive=tuple(parse_words(one) for one in layout.get("insensitive", ())),
        is_constant=layout.get("constant") is True,
    )


def _wanted(
    sets: Iterable[Set],
    tensors: Sequence[torch.Tensor],
    named: Mapping[str, int],
    *,
    rounding: str,
    kinds: frozenset[str],
) -> dict[int, CardWanted]:
    """Every expected output under its question. Raises LayoutError."""
    same = DOUBLE_FUNCTION if kinds == {WIDE} else SAME_FUNCTION

    def asked(index: int, slack: float) -> Question:
        question = real_question(dtype_name(tensors[index]), rounding)
        question = replace(question, tolerance=question.tolerance * slack)
        return question if kinds else replace(question, is_alone=True)

    found: dict[int, CardWanted] = {}
    for one in sets:
        real = [*one.outputs, *(change.output for change in one.changed)]
        exact = one.wide or one.exact
        for index in exact:
            found[index] = CardWanted(tensor=tensors[index], question=same)
        if exact and len(exact) != len(real):
            raise LayoutError("results in float64 of some outputs")
        for index, wide in zip(real, exact or (-1,) * len(real), strict=True):
            form = widened(spec_of(tensors[index]), kinds)
            if wide >= 0 and spec_of(tensors[wide]) != form:
                raise LayoutError("results in float64 of other shapes or types")
            is_exact = one.is_sure and index in one.outputs
            is_exact = is_exact and not tensors[index].is_floating_point()
            question = SAME_FUNCTION if is_exact else asked(index, one.slack)
            found[index] = CardWanted(
                tensor=tensors[index], question=question, exact=found.get(wide)
            )
        for name, after in one.state:
            for index in (after, named[name]):
                is_exact = one.is_sure and not tensors[index].is_floating_point()
                question = SAME_FUNCTION if is_exact else asked(index, one.slack)
                found[index] = CardWanted(tensor=tensors[index], question=question)
    return found


def _changed(item: Any, found: list[int], tensors: list[torch.Tensor]) -> Changed:
    number, output, *_ = item
    _indices([output], tensors)
    if type(number) is not int or not 0 <= number < len(found):
        raise LayoutError(f"no input {str(number)[:40]}")
    return Changed(number=number, output=output)


def _state(
    items: Any, named: dict[str, int], tensors: list[torch.Tensor]
) -> tuple[tuple[str, int], ...]:
    found = tuple((str(name), index) for name, index in items)
    _indices([index for _, index in found], tensors)
    for name, index in found:
        if name not in named:
            raise LayoutError(f"no parameter {name[:40]}")
        if spec_of(tensors[index]) != spec_of(tensors[named[name]]):
            raise LayoutError(f"parameter {name[:40]} has another shape after a call")
    return found


def _tree(tree: Any, found: list[int], *, tensors: list[torch.Tensor], start: int = 0) -> Tree:
    """The same tree with tensors numbered from `start` in order; their indices go to `found`."""
    kind, value = tree
    if kind == "tensor":
        if type(value) is not int or not 0 <= value < len(tensors):
            raise LayoutError(f"no tensor {str(value)[:40]}")
        found.append(value)
        return ["tensor", start + len(found) - 1]
    if kind == "permuted":
        tensor = _tree(value[0], found, tensors=tensors, start=start)
        return [kind, [tensor, parse_axes(value[1], spec_of(tensors[found[-1]]))]]
    if kind in ("list", "tuple"):
        return [kind, [_tree(item, found, tensors=tensors, start=start) for item in value]]
    if kind == "dict":
        return [
            kind,
            [[str(key), _tree(item, found, tensors=tensors, start=start)] for key, item in value],
        ]
    if kind in ("value", "dtype", "config"):
        return [kind, value]
    raise LayoutError(f"unknown kind of argument {str(kind)[:40]}")


def _indices(value: Iterable[Any], tensors: list[torch.Tensor]) -> tuple[int, ...]:
    found = tuple(value)
    if not all(type(index) is int and 0 <= index < len(tensors) for index in found):
        raise LayoutError(f"no tensors {str(found)[:80]}")
    return found


def view(memory: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    """A tensor of `spec` at byte `start` of a block."""
    kind = getattr(torch, spec.dtype)
    return memory[start : start + spec.num_bytes].view(kind).view(spec.shape)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Type and shape of a tensor."""
    return TensorSpec(dtype_name(tensor), tuple(tensor.shape))
