"""One draw of a problem on a GPU: what an oracle laid out, checked, as tensors by input set.

Called by `trial.gpu.references`, which asks the oracle, and read by all that judge on a card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from forge.evalpool.judge.channel.nesting import parse_form
from forge.evalpool.judge.channel.shm import LayoutError, TensorSpec
from forge.evalpool.judge.numbers.called import dtype_name
from forge.evalpool.judge.numbers.gpu_compare import Allowed
from forge.evalpool.judge.numbers.tolerance import rounding_in
from forge.evalpool.judge.trial.draws.build import parse_axes, parse_drawn
from forge.evalpool.judge.trial.draws.reference import max_uses
from forge.evalpool.judge.trial.trial import count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge.evalpool.judge.channel.gpu_memory import Block

NUM_TIMED_SETS = 2
"""Sets that no candidate has seen before it is timed."""

Tree = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input of a problem that works in place."""

    number: int
    """Among the inputs."""
    output: int
    error: int
    """Indices of its content afterwards, and of eager's error there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Indices of one input set's tensors."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    errors: tuple[int, ...]
    changed: tuple[Changed, ...] = ()
    """Inputs that forward must change in place."""
    state: tuple[tuple[str, int], ...] = ()
    """Parameters that forward changes, by name, and the indices of their contents afterwards."""
    variant: str = "given"
    """Name of its distribution; `given` for the problem's own."""


@dataclass(slots=True, kw_only=True)
class GpuReference:
    """One draw of a problem, in the judge's memory."""

    request: dict[str, Any]
    """Body of a capture's request, but for the code. All sets have the same form, so a tensor of it
    stands for one of each set; but outputs may have other shapes, as of `nonzero`."""
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
    allowed: dict[int, Allowed]
    """Tolerances of expected outputs, by index."""
    nesting: str = ""
    """As of `Program`."""
    names: frozenset[str] = frozenset()
    """Names of torch's operations of one call that read or write data."""
    num_uses: int = 0
    num_holders: int = 0
    """Judgements that read it now: it is freed when none does."""
    is_retired: bool = False

    @property
    def max_uses(self) -> int:
        """Candidates that one draw may serve."""
        return max_uses(sum(self.tensors[index].numel() for index in self.sets[0].outputs))

    @property
    def num_checked(self) -> int:
        """Sets for correctness; the ones behind are first seen when timed."""
        return max(1, len(self.sets) - NUM_TIMED_SETS)

    @property
    def unseen(self) -> list[int]:
        """Sets that no candidate has had in its checked calls."""
        return list(range(self.num_checked, len(self.sets)))

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
        outputs, errors = _indices(one["outputs"], tensors), _indices(one["errors"], tensors)
        if len(outputs) != len(errors):
            raise LayoutError("outputs without errors")
        changed = tuple(_changed(item, found, tensors) for item in one["changed"])
        sets.append(
            Set(
                inputs=tuple(found),
                outputs=outputs,
                errors=errors,
                changed=changed,
                state=_state(one["state"], known, tensors),
                variant=str(one["variant"]),
            )
        )
    if not sets:
        raise LayoutError("no input set")
    shapes = [[spec_of(tensors[index]) for index in one.inputs] for one in sets]
    if any(tree != trees[0] for tree in trees) or any(one != shapes[0] for one in shapes):
        raise LayoutError("get_inputs gives other shapes or arguments from call to call")
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
        "sets": [trees[0]] * len(sets),
        "tensors": [[spec.dtype, list(spec.shape)] for spec in specs],
    }
    rounding = rounding_in(layout, precision)
    outputs = [pair for one in sets for pair in zip(one.outputs, one.errors, strict=True)]
    outputs += [(change.output, change.error) for one in sets for change in one.changed]
    states = {index for one in sets for name, after in one.state for index in (after, named[name])}
    unknown = torch.empty(0)
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
        allowed={
            index: Allowed.of(tensors[index], tensors[error], precision=rounding)
            for index, error in outputs
        }
        | {index: Allowed.of(tensors[index], unknown, precision=rounding) for index in states},
    )


def _changed(item: Any, found: list[int], tensors: list[torch.Tensor]) -> Changed:
    number, output, error = item
    _indices([output, error], tensors)
    if type(number) is not int or not 0 <= number < len(found):
        raise LayoutError(f"no input {str(number)[:40]}")
    return Changed(number=number, output=output, error=error)


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
